import type { Params, TiledVariant } from './kernel.ts';
import { foldTiles, tileIndexWgsl } from './tiles.ts';

const THREADS = 256;

/**
 * An element-wise kernel for real GPUs, which memory bounds: four of the `n` elements a thread, 16 bytes at a time.
 *
 * @param vectors operands that are taken four elements at a time: all that the text indexes
 * @param wgsl declares `fn quad(q: u32)` for elements 4q to 4q + 3
 * @param offsets parameters that are added to an index
 */
export function quadsTiled(vectors: readonly string[], wgsl: string, offsets: readonly string[] = []): TiledVariant {
  return {
    vectors,
    workgroupSize: [THREADS, 1, 1],
    workgroups: ({ n }) => foldTiles(Math.ceil(n / (4 * THREADS))),
    fits: (params: Params) => params.n > 0 && ['n', ...offsets].every((name) => params[name] % 4 === 0),
    wgsl: `${tileIndexWgsl}${wgsl}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let q = tileIndex(group) * ${THREADS}u + index;
  if (q < p.n / 4u) { quad(q); }
}
`,
  };
}
