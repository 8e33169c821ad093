import { expect, test } from 'vitest';
import { dropoutInPlace } from '../dropout/dropout-in-place.ts';
import { caseViews } from '../kernel-case.ts';
import { reluGrad } from '../relu-grad/relu-grad.ts';
import { matmulNN, matmulNTBias } from './matmul.ts';
import { cases } from './matmul-hidden.cases.ts';
import { matmulNTReluDrop } from './matmul-hidden.ts';

test.each(cases.map((c) => [`${c.kernel.name}, ${c.name}`, c] as const))('%s: both in one', (_, testCase) => {
  const { kernel, params } = testCase;
  const [got, want] = [caseViews(testCase, 1), caseViews(testCase, 1)];
  kernel.run(got, params);
  const n = want[2].length;
  // Padding lies outside c: what is there is neither dropped nor gated by these kernels.
  const inside = (at: number) => {
    const from = at - params.cOffset;
    return from >= 0 && Math.floor(from / params.ldc) < params.M && from % params.ldc < params.N;
  };
  if (kernel === matmulNTReluDrop) {
    matmulNTBias.run(want, { ...params, accumulate: 0, relu: 1 });
    dropoutInPlace.run([want[2], want[4]], { ...params, n });
  } else {
    matmulNN.run(want, { ...params, accumulate: 0 });
    reluGrad.run([want[3], want[2]], { ...params, n });
  }
  for (let at = 0; at < n; at++) if (inside(at)) expect(got[2][at]).toBe(want[2][at]);
});
