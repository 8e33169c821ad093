import { expect, test } from 'vitest';
import { caseViews } from '../kernel-case.ts';
import { cases } from './matmul-linear-grads.cases.ts';
import { matmulLinearGrads } from './matmul-linear-grads.ts';

test.each(cases.map((c) => [c.name, c] as const))('%s: the gradients by their definition', (_, testCase) => {
  const { params } = testCase;
  const { M, N, K, dyOffset, ldy, wOffset, sumsOffset } = params;
  const before = caseViews(testCase, 1);
  const after = caseViews(testCase, 1);
  testCase.kernel.run(after, params);
  const [dy, w, x, ...results] = before.map((view) => Float64Array.from(view));
  const [dx, dw, db] = results;
  if (params.gated || !params.xAccumulate) dx.fill(0);
  if (!params.wAccumulate) dw.fill(0, wOffset, wOffset + N * K);
  if (!params.sumsAccumulate) db.fill(0, sumsOffset, sumsOffset + N);
  for (let m = 0; m < M; m++)
    for (let n = 0; n < N; n++) {
      const gradient = dy[dyOffset + m * ldy + n];
      db[sumsOffset + n] += gradient;
      for (let k = 0; k < K; k++) {
        dx[m * K + k] += gradient * w[wOffset + n * K + k];
        dw[wOffset + n * K + k] += gradient * x[m * K + k];
      }
    }
  if (params.gated)
    x.forEach((value, i) => {
      dx[i] = value <= 0 ? 0 : dx[i] * params.scale;
    });
  results.forEach((want, i) => {
    const worst = want.reduce((most, value, at) => Math.max(most, Math.abs(value - after[3 + i][at])), 0);
    expect(worst, testCase.kernel.operands[3 + i].name).toBeLessThan(1e-4);
  });
});

test.each(cases.filter(({ params }) => !params.xAccumulate).map((c) => [c.name, c] as const))(
  '%s: costs two products, and each operand once',
  (_, { params }) => {
    const { M, N, K } = params;
    const { flops, bytes } = matmulLinearGrads.cost(params);
    const elements = M * N + N * K + M * K + M * K + N * K + N;
    expect(bytes).toBe(4 * elements);
    expect(flops).toBeGreaterThanOrEqual(4 * M * N * K);
    expect(flops).toBeLessThanOrEqual(4 * M * N * K + M * N);
  },
);

test('the wide variant is of the widest layers, the narrow one of all others', () => {
  const [wide, narrow] = matmulLinearGrads.tiled!.special!;
  const layer = (K: number) => ({ ...cases[0].params, M: 35, N: 140, K, dyOffset: 0, ldy: 140, wOffset: 0 });
  const variantOf = (K: number) => [wide, narrow].find(({ fits }) => fits(layer(K)));
  expect([4, 1024, 2556].map(variantOf)).toEqual([narrow, narrow, narrow]);
  expect([2560, 4096].map(variantOf)).toEqual([wide, wide]);
});
