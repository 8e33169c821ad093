import { expect, test } from 'vitest';
import { caseViews } from '../kernel-case.ts';
import { cases } from './matmul.cases.ts';

/** C by its definition, element by element. */
function expected(testCase: (typeof cases)[number], views: ReturnType<typeof caseViews>): Float64Array {
  const { kernel, params } = testCase;
  const [a, b, c, bias] = views;
  const { M, N, K, aOffset, lda, bOffset, ldb, cOffset, ldc, accumulate } = params;
  const result = Float64Array.from(c);
  for (let m = 0; m < M; m++) {
    for (let n = 0; n < N; n++) {
      let sum = accumulate ? c[cOffset + m * ldc + n] : 0;
      for (let k = 0; k < K; k++) {
        const x = kernel.name.includes('tn') ? a[aOffset + k * lda + m] : a[aOffset + m * lda + k];
        const y = kernel.name.includes('nt') ? b[bOffset + n * ldb + k] : b[bOffset + k * ldb + n];
        sum += x * y;
      }
      if (bias && kernel.name.includes('bias')) {
        sum += bias[params.biasOffset + n];
        if (params.relu) sum = Math.max(sum, 0); // NaN stays NaN.
      }
      result[cOffset + m * ldc + n] = sum;
    }
  }
  return result;
}

test.each(cases.map((c) => [`${c.kernel.name}, ${c.name}`, c] as const))('%s', (_, testCase) => {
  const views = caseViews(testCase, 1);
  const want = expected(testCase, views);
  testCase.kernel.run(views, testCase.params);
  const got = views[2];
  for (let i = 0; i < want.length; i++) {
    if (Number.isNaN(want[i])) expect(got[i]).toBeNaN();
    else expect(got[i]).toBeCloseTo(want[i], 4);
  }
});
