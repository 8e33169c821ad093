import type { Kernel } from '../kernel.ts';
import { elementwiseWgsl, stridedThreads } from '../strided.ts';

/**
 * Rotary position embedding in place (Su et al. 2021), the pairs being elements j and j + HD/2 of a head as Hugging Face has
 * them: the first H heads of HD columns of each of R rows of x, `stride` apart, turn by the angles of position r mod T.
 * table[T, HD/2, 2] holds their cosines and sines; with `back` 1 they turn back, which is the gradient.
 */
export const rotary: Kernel = {
  name: 'rotary',
  operands: [
    { name: 'x', dtype: 'f32', access: 'read_write' },
    { name: 'table', dtype: 'f32', access: 'read' },
  ],
  params: [
    { name: 'R', type: 'u32' },
    { name: 'T', type: 'u32' },
    { name: 'H', type: 'u32' },
    { name: 'HD', type: 'u32' },
    { name: 'stride', type: 'u32' },
    { name: 'back', type: 'u32' },
  ],
  constants: [],
  threads: ({ R, H, HD }) => stridedThreads((R * H * HD) / 2),
  cost: ({ R, T, H, HD }) => ({ flops: 3 * R * H * HD, bytes: 4 * (2 * R * H * HD + T * HD) }),
  run([x, table], { R, T, H, HD, stride, back }) {
    const half = HD / 2;
    for (let r = 0; r < R; r++) {
      for (let h = 0; h < H; h++) {
        for (let j = 0; j < half; j++) {
          const at = r * stride + h * HD + j;
          const entry = 2 * ((r % T) * half + j);
          const cos = table[entry];
          const sin = back ? -table[entry + 1] : table[entry + 1];
          const [a, b] = [x[at], x[at + half]];
          x[at] = a * cos - b * sin;
          x[at + half] = b * cos + a * sin;
        }
      }
    }
  },
  wgsl: elementwiseWgsl(
    'p.R * p.H * (p.HD / 2u)',
    `
fn element(e: u32) {
  let half = p.HD / 2u;
  let j = e % half;
  let h = e / half % p.H;
  let r = e / half / p.H;
  let at = r * p.stride + h * p.HD + j;
  let entry = 2u * (r % p.T * half + j);
  let cos_j = table[entry];
  let sin_j = select(table[entry + 1u], -table[entry + 1u], p.back != 0u);
  let a = x[at];
  let b = x[at + half];
  x[at] = a * cos_j - b * sin_j;
  x[at + half] = b * cos_j + a * sin_j;
}`,
  ),
};
