import type { Cost, Kernel, ParamSpec, Params, View } from '../kernel.ts';
import { matmulTiled } from './matmul-tiled.ts';
import { type MatmulLayout, matmulWgsl, TILE_COLUMNS, TILE_ROWS } from './matmul-wgsl.ts';

const u32 = (name: string): ParamSpec => ({ name, type: 'u32' });
const PARAMS: readonly ParamSpec[] = [
  'M',
  'N',
  'K',
  'aOffset',
  'lda',
  'bOffset',
  'ldb',
  'cOffset',
  'ldc',
  'accumulate',
].map(u32);

/**
 * C[M, N] = (accumulate ? C : 0) + Σ_k A(m, k)·B(k, n); with a bias + bias[n], then relu if `relu` is 1. Rows of a and b lie
 * `lda` and `ldb` elements apart as stored: nt stores a[M, K] and b[N, K], nn a[M, K] and b[K, N], tn a[K, M] and b[K, N].
 */
function matmul(layout: MatmulLayout, bias: boolean): Kernel {
  return {
    name: bias ? `matmul-${layout}-bias` : `matmul-${layout}`,
    operands: [
      { name: 'a', dtype: 'f32', access: 'read' },
      { name: 'b', dtype: 'f32', access: 'read' },
      { name: 'c', dtype: 'f32', access: 'read_write' },
      ...(bias ? [{ name: 'bias', dtype: 'f32', access: 'read' } as const] : []),
    ],
    params: bias ? [...PARAMS, u32('biasOffset'), u32('relu')] : PARAMS,
    constants: [],
    threads: ({ M, N }) => Math.ceil(M / TILE_ROWS) * Math.ceil(N / TILE_COLUMNS),
    cost: matmulCost,
    shapeClass: (params) => `${layout} ${shapeOf(params)}`,
    run: (views, params) => runMatmul(layout, bias, views, params),
    wgsl: matmulWgsl(layout, bias),
    tiled: matmulTiled(layout, bias),
  };
}

/**
 * C = Aᵀ·B as matmul-tn, and sums[sumsOffset + m] = (sumsAccumulate ? sums : 0) + Σ_k A(k, m): a linear layer's weight and
 * bias gradients at once, for few rows.
 */
export const matmulTNSums: Kernel = {
  name: 'matmul-tn-sums',
  operands: [
    { name: 'a', dtype: 'f32', access: 'read' },
    { name: 'b', dtype: 'f32', access: 'read' },
    { name: 'c', dtype: 'f32', access: 'read_write' },
    { name: 'sums', dtype: 'f32', access: 'read_write' },
  ],
  params: [...PARAMS, u32('sumsOffset'), u32('sumsAccumulate')],
  constants: [],
  threads: ({ M, N }) => Math.ceil(M / TILE_ROWS) * Math.ceil(N / TILE_COLUMNS),
  shapeClass: (params) => `tn ${shapeOf(params)}`,
  cost: (params) => {
    const { flops, bytes } = matmulCost(params);
    return { flops: flops + params.M * params.K, bytes: bytes + 4 * params.M * (1 + params.sumsAccumulate) };
  },
  run(views, params) {
    runMatmul('tn', false, views, params);
    const [a, , , sums] = views;
    const { M, K, aOffset, lda, sumsOffset, sumsAccumulate } = params;
    for (let m = 0; m < M; m++) {
      let sum = sumsAccumulate ? sums[sumsOffset + m] : 0;
      for (let k = 0; k < K; k++) sum += a[aOffset + k * lda + m];
      sums[sumsOffset + m] = sum;
    }
  },
  wgsl: matmulWgsl('tn', false, true),
  tiled: matmulTiled('tn', false, true),
};

/** Rows, or products of a sum, up to which a product is bound by the bytes of its weight. */
const FEW = 64;
/** Columns with which every multiprocessor of a large GPU has a workgroup of many columns. */
const WIDE = 2560;
/** Products of a long sum. */
const LONG = 2048;

/** What a product's fastest variant depends on. */
function shapeOf({ M, N, K }: Params): string {
  if (K <= FEW) return 'few terms';
  if (M > FEW) return 'large';
  return `few rows, ${N < WIDE ? 'narrow' : 'wide'}, ${K < LONG ? 'short' : 'long'}`;
}

function matmulCost({ M, N, K, accumulate }: Params): Cost {
  return { flops: 2 * M * N * K, bytes: 4 * (M * K + K * N + M * N * (accumulate ? 2 : 1)) };
}

/** Products are summed in float64 in the order of k and rounded once, whatever the layout. */
function runMatmul(layout: MatmulLayout, bias: boolean, views: readonly View[], params: Params): void {
  const [a, b, c, biasView] = views;
  const { M, N, K, aOffset, lda, bOffset, ldb, cOffset, ldc, accumulate } = params;
  const aStep = layout === 'tn' ? lda : 1;
  const sums = new Float64Array(N + 3);
  for (let m = 0; m < M; m++) {
    const aBase = aOffset + (layout === 'tn' ? m : m * lda);
    if (layout === 'nt') {
      // Four columns at a time: four independent chains of additions.
      for (let n = 0; n < N; n += 4) {
        const b0 = bOffset + n * ldb;
        const b1 = n + 1 < N ? b0 + ldb : b0;
        const b2 = n + 2 < N ? b1 + ldb : b0;
        const b3 = n + 3 < N ? b2 + ldb : b0;
        let s0 = 0;
        let s1 = 0;
        let s2 = 0;
        let s3 = 0;
        for (let k = 0; k < K; k++) {
          const x = a[aBase + k];
          s0 += x * b[b0 + k];
          s1 += x * b[b1 + k];
          s2 += x * b[b2 + k];
          s3 += x * b[b3 + k];
        }
        sums[n] = s0;
        sums[n + 1] = s1;
        sums[n + 2] = s2;
        sums[n + 3] = s3;
      }
    } else {
      sums.fill(0);
      for (let k = 0; k < K; k++) {
        const x = a[aBase + k * aStep];
        const row = bOffset + k * ldb;
        for (let n = 0; n < N; n++) sums[n] += x * b[row + n];
      }
    }
    const row = cOffset + m * ldc;
    for (let n = 0; n < N; n++) {
      let value = accumulate ? c[row + n] + sums[n] : sums[n];
      if (bias) {
        value += biasView[params.biasOffset + n];
        if (params.relu && value < 0) value = 0;
      }
      c[row + n] = value;
    }
  }
}

/** C = A·Bᵀ: a linear layer's output from its input and weight[out, in]. */
export const matmulNT = matmul('nt', false);
/** C = A·B: a linear layer's input gradient from its output gradient and weight. */
export const matmulNN = matmul('nn', false);
/** C = Aᵀ·B: a weight's gradient from output gradient and input. */
export const matmulTN = matmul('tn', false);
/** C = A·Bᵀ + bias, and relu if asked. */
export const matmulNTBias = matmul('nt', true);
/** C = A·B + bias, for weights that are stored [in, out]. */
export const matmulNNBias = matmul('nn', true);
