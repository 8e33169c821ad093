import { expect, test } from 'vitest';
import { caseViews } from '../kernel-case.ts';
import { cases } from './embedding-grad.cases.ts';

test.each(cases.map((c) => [c.name, c] as const))('%s', (_, testCase) => {
  const [tokens, dout, dweight] = caseViews(testCase, 3);
  const { R, D, scale } = testCase.params;
  const want = Float64Array.from(dweight);
  for (let i = 0; i < R * D; i++) want[tokens[Math.floor(i / D)] * D + (i % D)] += scale * dout[i];
  testCase.kernel.run([tokens, dout, dweight], testCase.params);
  for (let i = 0; i < want.length; i++) expect(dweight[i]).toBeCloseTo(want[i], 4);
});
