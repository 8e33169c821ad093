import { expect, test } from 'vitest';
import { caseViews } from '../kernel-case.ts';
import { cases } from './column-sum.cases.ts';

test.each(cases.map((c) => [c.name, c] as const))('%s', (_, testCase) => {
  const [x, out] = caseViews(testCase, 2);
  const { R, C, xOffset, ldx, outOffset, accumulate } = testCase.params;
  const want = Array.from(out);
  for (let c = 0; c < C; c++) {
    const column = Array.from({ length: R }, (_, r) => x[xOffset + r * ldx + c]);
    want[outOffset + c] = column.reduce((sum, value) => sum + value, accumulate ? out[outOffset + c] : 0);
  }
  testCase.kernel.run([x, out], testCase.params);
  for (let i = 0; i < want.length; i++) expect(out[i]).toBeCloseTo(want[i], 4);
});
