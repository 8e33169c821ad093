import { attentionGradKV } from '../attention/attention-grad-kv.ts';
import { attentionGradQ } from '../attention/attention-grad-q.ts';
import { attentionGradKVMatrix, attentionGradQMatrix } from '../attention/attention-matrix.ts';
import type { Kernel, Params, TiledVariant } from '../kernel.ts';
import { withHalves } from './with-halves.ts';

/** The gradients of attention on tensor cores, and the operands that these take as halves. Forward is as fast without. */
const matrices: ReadonlyMap<Kernel, readonly [TiledVariant, readonly string[]]> = new Map([
  [attentionGradQ, [attentionGradQMatrix, ['qkv', 'out', 'dout']]],
  [attentionGradKV, [attentionGradKVMatrix, ['qkv', 'dout']]],
]);

const made = new Map<Kernel, Kernel>();

/**
 * A gradient of attention on tensor cores, which reads these operands as halves: what is multiplied, weights too, is rounded
 * to halves, as torch's kernels for float16 do; the plain TypeScript rounds only what is stored. Null for another kernel, and
 * where operands or shape have no such variant. The same kernel gives the same object.
 */
export function attentionOnTensorCores(kernel: Kernel, reads: readonly string[], params: Params): Kernel | null {
  const [variant, halves] = matrices.get(kernel) ?? [];
  if (!variant || !halves || [...reads].sort().join() !== [...halves].sort().join()) return null;
  let result = made.get(kernel);
  if (!result) {
    const halved = withHalves(kernel, reads);
    result = { ...halved, name: `${halved.name}, tensor cores`, tiled: { ...variant, special: [variant] } };
    made.set(kernel, result);
  }
  return variant.fits(params) ? result : null;
}
