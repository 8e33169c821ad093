import { expect, test } from 'vitest';
import { CONTROL, CONTROL_ELEMENTS } from '../control.ts';
import { seededRandom } from '../kernel-case.ts';
import { crossEntropy } from './cross-entropy.ts';
import { crossEntropyGrad } from './cross-entropy-grad.ts';
import { crossEntropyChunks, crossEntropyPartial } from './cross-entropy-partial.ts';
import { lossMean } from './loss-mean.ts';

const R = 4;
const V = 517;
const ld = 520;
const chunks = crossEntropyChunks(V);
const random = seededRandom(5);
const logits = Float32Array.from({ length: R * ld }, () => random() * 30 - 15);
const targets = Uint32Array.from([0, 516, 255, 256]);

function lossOf(x: readonly number[], row: number): number {
  const shown = x.slice(row * ld, row * ld + V);
  return Math.log(shown.reduce((sum, value) => sum + Math.exp(value), 0)) - shown[targets[row]];
}

function run(input: Float32Array<ArrayBuffer>): { rowLoss: Float32Array; lse: Float32Array<ArrayBuffer> } {
  const partial = new Float32Array(2 * R * chunks);
  const rowLoss = new Float32Array(R);
  const lse = new Float32Array(R);
  crossEntropyPartial.run([input, partial], { R, V, ld, chunks });
  crossEntropy.run([input, targets, partial, rowLoss, lse], { R, V, ld, chunks, firstRow: 0 });
  return { rowLoss, lse };
}

test('row losses follow the definition, the padding of a row aside', () => {
  const { rowLoss } = run(logits);
  rowLoss.forEach((loss, row) => {
    expect(loss).toBeCloseTo(lossOf([...logits], row), 5);
  });
});

test('logits that overflow exp give a finite loss', () => {
  const { rowLoss } = run(logits.map((value) => value + 1000));
  rowLoss.forEach((loss, row) => {
    expect(loss).toBeCloseTo(lossOf([...logits], row), 3);
  });
});

test.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])(
  'a logit of %s makes the loss and the gradients of its row not finite',
  (bad) => {
    const broken = logits.slice();
    broken[ld + 300] = bad;
    const { rowLoss, lse } = run(broken);
    expect(Array.from(rowLoss, Number.isFinite)).toEqual([true, false, true, true]);
    crossEntropyGrad.run([broken, targets, lse], { R, V, ld, firstRow: 0, scale: 1 });
    expect(Array.from(broken.subarray(ld, ld + V), Number.isFinite)).not.toContain(true);
    expect(Array.from(broken.subarray(2 * ld), Number.isFinite)).not.toContain(false);
  },
);

test('gradient agrees with finite differences; padding gets 0', () => {
  const scale = 0.25;
  const { lse } = run(logits);
  const grad = logits.slice();
  crossEntropyGrad.run([grad, targets, lse], { R, V, ld, firstRow: 0, scale });
  for (let row = 0; row < R; row++) {
    for (const c of [0, 1, 255, 256, 511, 516]) {
      const h = 1e-4;
      const moved = (by: number) => Array.from(logits, (value, i) => (i === row * ld + c ? value + by : value));
      const slope = (lossOf(moved(h), row) - lossOf(moved(-h), row)) / (2 * h);
      expect(grad[row * ld + c]).toBeCloseTo(slope * scale, 5);
    }
    expect(Array.from(grad.subarray(row * ld + V, (row + 1) * ld))).toEqual([0, 0, 0]);
  }
});

test('a target outside the vocabulary is refused', () => {
  const views = [
    logits,
    new Uint32Array([0, 0, V, 0]),
    new Float32Array(2 * R * chunks),
    new Float32Array(R),
    new Float32Array(R),
  ];
  expect(() => crossEntropy.run(views, { R, V, ld, chunks, firstRow: 0 })).toThrow(
    'target 517 of row 2 is not below 517',
  );
});

test('loss-mean starts or continues the mean in the control tensor', () => {
  const control = new Float32Array(CONTROL_ELEMENTS).fill(7);
  lossMean.run([new Float32Array([1, 2, 3, 6]), control], { R: 4, scale: 0.25 / 2, accumulate: 0 });
  expect(control[CONTROL.loss]).toBe(1.5);
  lossMean.run([new Float32Array([2, 2, 2, 2]), control], { R: 4, scale: 0.25 / 2, accumulate: 1 });
  expect(control[CONTROL.loss]).toBe(2.5);
  expect(control[CONTROL.gradNorm]).toBe(7);
});
