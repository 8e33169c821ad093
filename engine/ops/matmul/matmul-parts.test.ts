import { expect, test } from 'vitest';
import { caseViews } from '../kernel-case.ts';
import { matmulCase } from './matmul.cases.ts';
import { matmulNN, matmulNNBias } from './matmul.ts';
import { matmulAddParts, matmulAddPartsBias, matmulNNParts, PARTS } from './matmul-parts.ts';

test.each([
  ['a product', matmulNN, matmulAddParts],
  ['one with a bias and relu', matmulNNBias, matmulAddPartsBias],
] as const)('%s is its parts, added', (_, whole, add) => {
  const shape = { name: 'added', M: 5, N: 7, K: 37, accumulate: 1, relu: 1, padding: 3 };
  const testCase = matmulCase(whole, shape);
  const [a, b, c, ...bias] = caseViews(testCase, 3);
  const want = c.slice() as Float32Array<ArrayBuffer>;
  whole.run([a, b, want, ...bias], testCase.params);
  const sums = new Float32Array(PARTS * shape.M * shape.N);
  matmulNNParts.run([a, b, sums], testCase.params);
  add.run([sums, c, ...bias], testCase.params);
  c.forEach((value, i) => {
    expect(value).toBeCloseTo(want[i], 5);
  });
});
