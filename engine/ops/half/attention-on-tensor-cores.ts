import { attentionGradKV } from '../attention/attention-grad-kv.ts';
import { attentionGradQ } from '../attention/attention-grad-q.ts';
import {
  attentionGradKVHalfMatrix,
  attentionGradKVMatrix,
  attentionGradQHalfMatrix,
  attentionGradQMatrix,
} from '../attention/attention-matrix.ts';
import type { Kernel, Params, TiledVariant } from '../kernel.ts';
import { packHalves, unpackHalves } from './half.ts';
import { withHalves } from './with-halves.ts';

/** A gradient of attention on tensor cores: the operands that it reads as halves, and its variants for dqkv. */
interface OnTensorCores {
  readonly reads: string;
  readonly floats: TiledVariant;
  readonly halves: TiledVariant;
}

/** Forward is as fast without. */
const matrices: ReadonlyMap<Kernel, OnTensorCores> = new Map([
  [attentionGradQ, { reads: 'dout,out,qkv', floats: attentionGradQMatrix, halves: attentionGradQHalfMatrix }],
  [attentionGradKV, { reads: 'dout,qkv', floats: attentionGradKVMatrix, halves: attentionGradKVHalfMatrix }],
]);

const made = new Map<string, Kernel>();

/**
 * A gradient of attention on tensor cores, which reads these operands as halves, and writes its part of dqkv so if `writes`
 * names it: what is multiplied, weights too, is rounded to halves, as torch's kernels for float16 do; the plain TypeScript
 * rounds only what is stored. Null for another kernel, and where operands or shape have no such variant. The same kernel and
 * names give the same object.
 */
export function attentionOnTensorCores(
  kernel: Kernel,
  reads: readonly string[],
  writes: readonly string[],
  params: Params,
): Kernel | null {
  const matrix = matrices.get(kernel);
  const half = writes.length > 0;
  if (!matrix || [...reads].sort().join() !== matrix.reads || (half && writes.join() !== 'dqkv')) return null;
  const variant = half ? matrix.halves : matrix.floats;
  const key = `${kernel.name} ${half}`;
  let result = made.get(key);
  if (!result) {
    const halved = withHalves(kernel, reads);
    const name = `${halved.name}${half ? ', to half dqkv' : ''}, tensor cores`;
    const tiled = { ...variant, special: [variant] };
    result = half ? { ...toHalfDqkv(halved), name, tiled } : { ...halved, name, tiled };
    made.set(key, result);
  }
  return variant.fits(params) ? result : null;
}

function toHalfDqkv(kernel: Kernel): Kernel {
  const at = kernel.operands.findIndex(({ name }) => name === 'dqkv');
  return {
    ...kernel,
    halves: [...(kernel.halves ?? []), 'dqkv'],
    operands: kernel.operands.map((o, i) => (i === at ? { ...o, dtype: 'f16' } : o)),
    run(views, params) {
      const dqkv = unpackHalves(views[at] as Uint32Array);
      kernel.run(
        views.map((view, i) => (i === at ? dqkv : view)),
        params,
      );
      views[at].set(packHalves(dqkv));
    },
  };
}
