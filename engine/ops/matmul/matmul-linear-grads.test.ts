import { expect, test } from 'vitest';
import { caseViews } from '../kernel-case.ts';
import { cases } from './matmul-linear-grads.cases.ts';

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
