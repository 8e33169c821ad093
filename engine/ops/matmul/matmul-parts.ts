import type { Kernel, ParamSpec, Params } from '../kernel.ts';
import { blockedParts } from './matmul-blocked.ts';
import { PARTS_SHAPE } from './matmul-few-rows.ts';
import { streamVariant } from './matmul-few-rows-stream.ts';

const u32 = (name: string): ParamSpec => ({ name, type: 'u32' });

/** In how many parts the sum over k of a product is added. */
export const PARTS = PARTS_SHAPE.parts;

/** vec4s along k of a part, the last one perhaps fewer. */
const share = (K: number) => Math.ceil(Math.ceil(K / 4) / PARTS);

/**
 * The sums over an eighth of k each of C = A·B: parts[part, m, n]. `matmulAddParts` makes C of them. For products whose
 * columns are too few to keep a large GPU busy, and whose sums are long.
 */
export const matmulNNParts: Kernel = {
  name: 'matmul-nn-parts',
  operands: [
    { name: 'a', dtype: 'f32', access: 'read' },
    { name: 'b', dtype: 'f32', access: 'read' },
    { name: 'c', dtype: 'f32', access: 'write' },
  ],
  params: ['M', 'N', 'K', 'aOffset', 'lda', 'bOffset', 'ldb'].map(u32),
  constants: [],
  threads: ({ M, N }) => PARTS * M * N,
  cost: ({ M, N, K }) => ({ flops: 2 * M * N * K, bytes: 4 * (M * K + K * N + PARTS * M * N) }),
  run([a, b, c], { M, N, K, aOffset, lda, bOffset, ldb }) {
    const length = 4 * share(K);
    for (let part = 0; part < PARTS; part++)
      for (let m = 0; m < M; m++)
        for (let n = 0; n < N; n++) {
          let sum = 0;
          for (let k = part * length; k < Math.min((part + 1) * length, K); k++)
            sum += a[aOffset + m * lda + k] * b[bOffset + k * ldb + n];
          c[(part * M + m) * N + n] = sum;
        }
  },
  wgsl: `
fn kernel(i: u32) {
  let n = i % p.N;
  let m = i / p.N % p.M;
  let length = ((p.K + 3u) / 4u + ${PARTS - 1}u) / ${PARTS}u * 4u;
  let begin = i / p.N / p.M * length;
  var sum = 0.0;
  for (var k = begin; k < min(begin + length, p.K); k++) {
    sum += a[p.aOffset + m * p.lda + k] * b[p.bOffset + k * p.ldb + n];
  }
  c[i] = sum;
}`,
  tiled: { ...streamVariant('nn', '', PARTS_SHAPE), special: [blockedParts(PARTS)] },
};

/** What a product does with its sums, done with those over parts: C = (accumulate ? C : 0) + Σ parts, then bias and relu. */
function addParts(bias: boolean): Kernel {
  return {
    name: bias ? 'matmul-add-parts-bias' : 'matmul-add-parts',
    operands: [
      { name: 'parts', dtype: 'f32', access: 'read' },
      { name: 'c', dtype: 'f32', access: 'read_write' },
      ...(bias ? [{ name: 'bias', dtype: 'f32', access: 'read' } as const] : []),
    ],
    params: ['M', 'N', 'cOffset', 'ldc', 'accumulate', ...(bias ? ['biasOffset', 'relu'] : [])].map(u32),
    constants: [],
    threads: ({ M, N }) => M * N,
    cost: ({ M, N, accumulate }) => ({ flops: PARTS * M * N, bytes: 4 * (PARTS + 1 + accumulate) * M * N }),
    run([parts, c, biases], { M, N, cOffset, ldc, accumulate, biasOffset, relu }: Params) {
      for (let i = 0; i < M * N; i++) {
        let sum = 0;
        for (let part = 0; part < PARTS; part++) sum += parts[part * M * N + i];
        const at = cOffset + Math.floor(i / N) * ldc + (i % N);
        if (accumulate) sum += c[at];
        if (bias) {
          sum += biases[biasOffset + (i % N)];
          if (relu && sum < 0) sum = 0;
        }
        c[at] = sum;
      }
    },
    wgsl: `
fn kernel(i: u32) {
  let size = p.M * p.N;
  var sum = parts[i];
  for (var part = 1u; part < ${PARTS}u; part++) { sum += parts[part * size + i]; }
  let at = p.cOffset + i / p.N * p.ldc + i % p.N;
  if (p.accumulate != 0u) { sum += c[at]; }
  ${bias ? 'sum += bias[p.biasOffset + i % p.N];\n  if (p.relu != 0u && sum < 0.0) { sum = 0.0; }' : ''}
  c[at] = sum;
}`,
  };
}

export const matmulAddParts: Kernel = addParts(false);
export const matmulAddPartsBias: Kernel = addParts(true);
