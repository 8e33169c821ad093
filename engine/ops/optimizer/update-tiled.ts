import type { TiledVariant } from '../kernel.ts';
import { foldTiles, tileIndexWgsl } from '../tiles.ts';
import { clippingFourWgsl } from './clipping.ts';
import { skipsUpdateWgsl } from './skip.ts';
import type { UpdateRule } from './update.ts';

const THREADS = 256;

/**
 * The update with four elements a thread, each operand 16 bytes at a time: memory bounds it on a GPU, the number of
 * accesses on a software adapter. The rule is the plain variant's; its values are vec4s.
 */
export function updateTiled({ before, each }: UpdateRule, operands: readonly string[]): TiledVariant {
  return {
    barrierFree: true,
    vectors: operands.filter((name) => name !== 'control'),
    workgroupSize: [THREADS, 1, 1],
    workgroups: ({ n }) => foldTiles(Math.ceil(n / (4 * THREADS))),
    fits: ({ n, offset }) => n > 0 && n % 4 === 0 && offset % 4 === 0,
    wgsl: `${tileIndexWgsl}${skipsUpdateWgsl}${clippingFourWgsl}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let quad = tileIndex(group) * ${THREADS}u + index;
  if (quad >= p.n / 4u || skipsUpdate()) { return; }
  ${before}
  let e = p.offset / 4u + quad;
  ${each}
}
`,
  };
}
