import type { Kernel, ParamSpec, Params, TiledVariant } from '../kernel.ts';
import { matmulNN, matmulTNSums } from './matmul.ts';
import { type StreamShape, streamCode, streamTile } from './matmul-few-rows-stream.ts';
import { type TermsShape, termsCode, termsGrid } from './matmul-few-terms.ts';
import type { ProductWords } from './product-words.ts';

const u32 = (name: string): ParamSpec => ({ name, type: 'u32' });

/** Rows that one workgroup's products take, and terms that it stages at once. */
const MOST_ROWS = 36;

/** The input's gradient as a product: dx = dy·W. */
const INPUT: ProductWords = {
  ...{ M: 'p.M', N: 'p.K', K: 'p.N' },
  ...{ a: 'dy', aOffset: 'p.dyOffset', lda: 'p.ldy', b: 'w', bOffset: 'p.wOffset', ldb: 'p.K' },
  ...{ c: 'dx', cOffset: '0u', ldc: 'p.K', accumulate: 'p.xAccumulate', store: 'storeInput' },
};

/** The weight's gradient as a product: dW = dyᵀ·x. */
const WEIGHT: ProductWords = {
  ...{ M: 'p.N', N: 'p.K', K: 'p.M' },
  ...{ a: 'dy', aOffset: 'p.dyOffset', lda: 'p.ldy', b: 'x', bOffset: '0u', ldb: 'p.K' },
  ...{ c: 'dw', cOffset: 'p.wOffset', ldc: 'p.K', accumulate: 'p.wAccumulate', store: 'storeWeight' },
};

const inputProduct = ({ M, N, K, dyOffset, ldy, wOffset }: Params): Params => ({
  ...{ M, N: K, K: N, aOffset: dyOffset, lda: ldy, bOffset: wOffset, ldb: K, cOffset: 0, ldc: K },
});
const weightProduct = ({ M, N, K, dyOffset, ldy, wOffset }: Params): Params => ({
  ...{ M: N, N: K, K: M, aOffset: dyOffset, lda: ldy, bOffset: 0, ldb: K, cOffset: wOffset, ldc: K },
});

/** vec4s of workgroup memory with which two workgroups fit a multiprocessor. */
const HALF_QUADS = 1536;
const few = { threads: 256, columnWarps: 1, rows: 9, columns: 4, parts: 1, quads: HALF_QUADS } as const;

/** From so many columns of x on there are workgroups of all rows for every multiprocessor of a large GPU. */
const WIDE = 2560;

function variants(): readonly TiledVariant[] {
  const wide = gradientsVariant(
    { ...few, rowLanes: 4, columnLanes: 8, turns: 4, ahead: 4 },
    { columns: 128, rowsEach: 8 },
  );
  const narrow = gradientsVariant(
    { ...few, rowLanes: 2, columnLanes: 4, turns: 2, ahead: 2 },
    { columns: 64, rowsEach: 4 },
  );
  return [{ ...wide, fits: (params) => params.K >= WIDE && wide.fits(params) }, narrow];
}
const special = variants();

/**
 * All gradients of a linear layer of few rows at once: dx = (xAccumulate ? dx : 0) + dy·W, dW = (wAccumulate ? dW : 0) + dyᵀ·x
 * and db = (sumsAccumulate ? db : 0) + Σ rows of dy, where dy [M, N] has rows `ldy` apart from `dyOffset` on, x and dx are
 * [M, K], and W and dW [N, K] begin at `wOffset`, db at `sumsOffset`. If `gated`, dx is dy·W · scale where x is above 0 (or not
 * a number), and 0 elsewhere: x is then what an activation function and dropout have left.
 */
export const matmulLinearGrads: Kernel = {
  name: 'matmul-linear-grads',
  operands: [
    { name: 'dy', dtype: 'f32', access: 'read' },
    { name: 'w', dtype: 'f32', access: 'read' },
    { name: 'x', dtype: 'f32', access: 'read' },
    { name: 'dx', dtype: 'f32', access: 'read_write' },
    { name: 'dw', dtype: 'f32', access: 'read_write' },
    { name: 'sums', dtype: 'f32', access: 'read_write' },
  ],
  params: [
    ...['M', 'N', 'K', 'dyOffset', 'ldy', 'wOffset', 'xAccumulate', 'wAccumulate'].map(u32),
    ...['sumsOffset', 'sumsAccumulate', 'gated'].map(u32),
    { name: 'scale', type: 'f32' },
  ],
  constants: [],
  threads: ({ M, N, K }) => (M + N) * K,
  cost(params) {
    const { M, N, xAccumulate, wAccumulate, sumsAccumulate, gated } = params;
    const input = matmulNN.cost({ ...inputProduct(params), accumulate: gated ? 0 : xAccumulate });
    const weight = matmulTNSums.cost({ ...weightProduct(params), accumulate: wAccumulate, sumsAccumulate });
    return { flops: input.flops + weight.flops, bytes: input.bytes + weight.bytes - 4 * M * N };
  },
  run([dy, w, x, dx, dw, sums], params) {
    const { M, K, xAccumulate, wAccumulate, sumsOffset, sumsAccumulate, gated, scale } = params;
    const accumulate = gated ? 0 : xAccumulate;
    matmulNN.run([dy, w, dx], { ...inputProduct(params), accumulate });
    for (let i = 0; gated && i < M * K; i++) dx[i] = x[i] <= 0 ? 0 : dx[i] * scale;
    matmulTNSums.run([dy, x, dw, sums], {
      ...weightProduct(params),
      ...{ accumulate: wAccumulate, sumsOffset, sumsAccumulate },
    });
  },
  wgsl: `
fn kernel(i: u32) {
  let inner = i % p.K;
  let outer = i / p.K;
  var sum = 0.0;
  if (outer < p.M) {
    for (var o = 0u; o < p.N; o++) { sum += dy[p.dyOffset + outer * p.ldy + o] * w[p.wOffset + o * p.K + inner]; }
    if (p.gated != 0u) {
      sum = select(sum * p.scale, 0.0, x[i] <= 0.0);
    } else if (p.xAccumulate != 0u) {
      sum += dx[i];
    }
    dx[i] = sum;
    return;
  }
  let o = outer - p.M;
  for (var r = 0u; r < p.M; r++) { sum += dy[p.dyOffset + r * p.ldy + o] * x[r * p.K + inner]; }
  let at = p.wOffset + o * p.K + inner;
  if (p.wAccumulate != 0u) { sum += dw[at]; }
  dw[at] = sum;
  if (inner == 0u) {
    var bias = 0.0;
    for (var r = 0u; r < p.M; r++) { bias += dy[p.dyOffset + r * p.ldy + o]; }
    if (p.sumsAccumulate != 0u) { bias += sums[p.sumsOffset + o]; }
    sums[p.sumsOffset + o] = bias;
  }
}`,
  tiled: { ...special[1], special },
};

/** Both products in one dispatch: the first workgroups have the input's gradient, the others the weight's. */
export function gradientsVariant(input: StreamShape, weight: TermsShape): TiledVariant {
  const tile = streamTile(input);
  const stream = streamCode('nn', input, INPUT);
  const terms = termsCode(weight, true, WEIGHT);
  const across = ({ K }: Params) => Math.ceil(K / tile.N);
  const grid = (params: Params) => termsGrid(weight, weightProduct(params) as { M: number; N: number });
  return {
    name: `gradients-${tile.M}x${tile.N}x${weight.columns}`,
    vectors: ['dy', 'w', 'x', 'dw'],
    workgroupSize: [input.threads, 1, 1],
    workgroups(params) {
      const [x, y] = grid(params);
      return [across(params) * Math.ceil(params.M / tile.M) + x * y, 1, 1];
    },
    fits: (params) =>
      ['dyOffset', 'ldy', 'wOffset', 'N', 'K'].every((name) => params[name] % 4 === 0) &&
      params.M > 0 &&
      params.M <= MOST_ROWS &&
      params.N > 0,
    wgsl: `
var<workgroup> staged: array<vec4f, ${Math.max(stream.quads, terms.quads)}>;
fn storeInput(m: u32, n: u32, sum: f32) {
  if (m < p.M && n < p.K) {
    let at = m * p.K + n;
    var value = sum;
    if (p.gated != 0u) {
      value = select(value * p.scale, 0.0, x[at / 4u][at % 4u] <= 0.0);
    } else if (p.xAccumulate != 0u) {
      value += dx[at];
    }
    dx[at] = value;
  }
}
${stream.functions}${terms.functions}
fn inputGradient(group: vec3u, index: u32) {${stream.body}
}
fn weightGradient(group: vec3u, index: u32) {${terms.body}
}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let across = (p.K + ${tile.N - 1}u) / ${tile.N}u;
  let first = across * ((p.M + ${tile.M - 1}u) / ${tile.M}u);
  if (group.x < first) {
    inputGradient(vec3u(group.x % across, group.x / across, 0u), index);
  } else {
    let wide = (p.K + ${weight.columns - 1}u) / ${weight.columns}u;
    weightGradient(vec3u((group.x - first) % wide, (group.x - first) / wide, 0u), index);
  }
}`,
  };
}
