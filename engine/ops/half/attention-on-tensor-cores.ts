import { attention } from '../attention/attention.ts';
import { attentionGradKV } from '../attention/attention-grad-kv.ts';
import { attentionGradQ } from '../attention/attention-grad-q.ts';
import {
  attentionGradKVHalfMatrix,
  attentionGradKVMatrix,
  attentionGradQHalfMatrix,
  attentionGradQMatrix,
  attentionMatrix,
} from '../attention/attention-matrix.ts';
import type { Kernel, Params, TiledVariant } from '../kernel.ts';
import { packHalves, unpackHalves } from './half.ts';
import { withHalves } from './with-halves.ts';
import { writingHalves } from './writing-halves.ts';

/** Attention or a gradient of it on tensor cores: what it reads as halves, what it may write so, and its variants. */
interface OnTensorCores {
  readonly reads: string;
  readonly writes: string;
  readonly floats: TiledVariant;
  /** With dqkv as halves, of which each gradient writes a part. */
  readonly parts?: TiledVariant;
}

const matrices: ReadonlyMap<Kernel, OnTensorCores> = new Map<Kernel, OnTensorCores>([
  [attention, { reads: 'qkv', writes: 'out', floats: attentionMatrix }],
  [
    attentionGradQ,
    { reads: 'dout,out,qkv', writes: 'dqkv', floats: attentionGradQMatrix, parts: attentionGradQHalfMatrix },
  ],
  [
    attentionGradKV,
    { reads: 'dout,qkv', writes: 'dqkv', floats: attentionGradKVMatrix, parts: attentionGradKVHalfMatrix },
  ],
]);

const made = new Map<string, Kernel>();

/**
 * Attention, or a gradient of it, on tensor cores, which reads these operands as halves, and writes so what `writes` names: what
 * is multiplied, weights too, is rounded to halves, as torch's kernels for float16 do; the plain TypeScript rounds only what
 * is stored. Null for another kernel, and where operands or shape have no such variant. The same kernel and names give the
 * same object.
 */
export function attentionOnTensorCores(
  kernel: Kernel,
  reads: readonly string[],
  writes: readonly string[],
  params: Params,
): Kernel | null {
  const matrix = matrices.get(kernel);
  if (!matrix || [...reads].sort().join() !== matrix.reads || !matrix.floats.fits(params)) return null;
  if (writes.length > 0 && writes.join() !== matrix.writes) return null;
  const key = `${kernel.name} ${writes.join()}`;
  let result = made.get(key);
  if (!result) {
    const variant = (writes.length > 0 && matrix.parts) || matrix.floats;
    const floats = { ...withHalves(kernel, reads), tiled: { ...variant, special: [variant] } };
    const halved = variant === matrix.parts ? toHalfDqkv(floats) : writingHalves(floats, writes, params);
    if (!halved) return null;
    result = { ...halved, name: `${halved.name}, tensor cores` };
    made.set(key, result);
  }
  return result;
}

function toHalfDqkv(kernel: Kernel): Kernel {
  const at = kernel.operands.findIndex(({ name }) => name === 'dqkv');
  return {
    ...kernel,
    name: `${kernel.name}, to half dqkv`,
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
