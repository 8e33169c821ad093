import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { type BatchesOptions, createBatchesStream, parseBatches } from './batches.ts';

const reference = JSON.parse(
  readFileSync(new URL('../testdata/demo-transformer/batches.json', import.meta.url), 'utf8'),
) as { input: number[][]; target: number[][] }[][];

const two: BatchesOptions = { ranks: 2, accumulateGradBatches: 1, steps: 20, vocabSize: 97 };

/** One entry per shape given, with equal batches of zeros for `ranks` ranks. */
function zeros(shapes: [rows: number, columns: number][], ranks = 1) {
  const tokens = (rows: number, columns: number) =>
    Array.from({ length: rows }, () => new Array<number>(columns).fill(0));
  return shapes.map(([rows, columns]) =>
    Array.from({ length: ranks }, () => ({ input: tokens(rows, columns), target: tokens(rows, columns) })),
  );
}

it('gives each rank its batch of the reference file', () => {
  const stream = createBatchesStream(parseBatches(reference, 'batches.json'), two);
  expect([stream.vocabSize, stream.batchSize, stream.tokensPerSample]).toEqual([97, 3, 12]);
  for (const step of [0, 19]) {
    for (const rank of [0, 1]) {
      const { input, target, rows, columns } = stream.batch(step, 0, rank);
      expect({ input: [...input], target: [...target], rows, columns }).toEqual({
        input: reference[step][rank].input.flat(),
        target: reference[step][rank].target.flat(),
        rows: 3,
        columns: 12,
      });
    }
  }
  expect([0, 1, 20].map((step) => stream.samplesConsumed(step))).toEqual([0, 6, 120]);
});

it('takes entries s·k … s·k + k − 1 at step s, and the first ranks', () => {
  const file = parseBatches(reference, 'batches.json');
  const stream = createBatchesStream(file, { ranks: 1, accumulateGradBatches: 2, steps: 10, vocabSize: null });
  expect(stream.batch(3, 1, 0)).toBe(file.entries[7][0]);
  const seen = reference.flatMap(([first]) => [...first.input.flat(), ...first.target.flat()]);
  expect(stream.vocabSize).toBe(Math.max(...seen) + 1);
});

it('goes on from the same sample with other micro-batches and ranks: entries are counted, not steps', () => {
  const file = parseBatches(reference, 'batches.json');
  const before = createBatchesStream(file, two);
  const samples = before.samplesConsumed(5);
  const resumed = { ...two, ranks: 1, accumulateGradBatches: 2, steps: 12, resume: { step: 5, samples } };
  const stream = createBatchesStream(file, resumed);
  expect(stream.batch(5, 0, 0)).toBe(file.entries[5][0]);
  expect(stream.batch(11, 1, 0)).toBe(file.entries[18][0]);
  expect(stream.shape(11)).toEqual({ rows: 3, columns: 12 });
  // And back again: what one rank of two left unread lies behind it too.
  const again = { ...two, steps: 13, resume: { step: 12, samples: stream.samplesConsumed(12) } };
  expect(createBatchesStream(file, again).batch(12, 0, 1)).toBe(file.entries[19][1]);
  // Where nothing says how many samples, as many entries as its own steps would have taken.
  const foreign = { ...resumed, steps: 8, resume: { step: 5, samples: null } };
  expect(createBatchesStream(file, foreign).batch(5, 0, 0)).toBe(file.entries[10][0]);
  expect(() => createBatchesStream(file, { ...resumed, steps: 13 })).toThrow(
    /20 entries; steps 5 to 12 take 2 each from entry 5 on, 21 in all. Lower trainer.steps to 12/,
  );
});

it('takes a flat list as one row', () => {
  const stream = createBatchesStream(parseBatches([[{ input: [1, 2], target: [2, 3] }]], 'b'), {
    ...two,
    ranks: 1,
    steps: 1,
  });
  expect(stream.batch(0, 0, 0)).toEqual({
    input: Int32Array.of(1, 2),
    target: Int32Array.of(2, 3),
    rows: 1,
    columns: 2,
  });
});

it('says the shape of each step, and reads no further than the run does', () => {
  const file = parseBatches(
    zeros([
      [1, 2],
      [1, 2],
      [2, 3],
      [2, 3],
      [9, 9],
    ]),
    'b',
  );
  const stream = createBatchesStream(file, { ...two, ranks: 1, accumulateGradBatches: 2, steps: 2 });
  expect([stream.shape(0), stream.shape(1)]).toEqual([
    { rows: 1, columns: 2 },
    { rows: 2, columns: 3 },
  ]);
  expect([0, 1, 2].map((step) => stream.samplesConsumed(step))).toEqual([0, 2, 6]);
});

it.each<[string, unknown, RegExp]>([
  ['an object', {}, /expected a list/],
  ['nothing', [], /expected a list/],
  ['an entry that is no list', [3], /entry 0 is not a list/],
  ['a batch that is null', [[null]], /entry 0, rank 0: input is not a list/],
  ['no target', [[{ input: [1] }]], /entry 0, rank 0: target is not a list/],
  ['an empty row', [[{ input: [[]], target: [[]] }]], /input has an empty row/],
  [
    'ragged rows',
    [
      [
        {
          input: [[1, 2], [3]],
          target: [
            [1, 2],
            [3, 4],
          ],
        },
      ],
    ],
    /row 1 of input is not 2 tokens/,
  ],
  ['a row that is a number', [[{ input: [[1], 2], target: [[1], [2]] }]], /row 1 of input is not 1 tokens/],
  ['unequal shapes', [[{ input: [1, 2], target: [1] }]], /input is 1×2 and target 1×1/],
  ['a negative token', [[{ input: [[1, -100]], target: [[1, 2]] }]], /input\[0\]\[1\] is -100, not a token id/],
  ['a fraction', [[{ input: [1], target: [0.5] }]], /target\[0\] is 0\.5, not a token id/],
  ['a text', [[{ input: ['root:x:0'], target: [1] }]], /input\[0\] is a string, not a token id/],
])('refuses %s', (_, json, message) => {
  expect(() => parseBatches(json, 'b.json')).toThrow(message);
});

it.each<[string, unknown, Partial<BatchesOptions>, RegExp]>([
  [
    'too few entries',
    reference,
    { accumulateGradBatches: 3, steps: 7 },
    /20 entries; trainer\.steps 7 × .* takes 21\. Lower trainer\.steps to 6/,
  ],
  ['more ranks than the file', reference, { ranks: 3 }, /entry 0 \(step 0\) has batches for 2 ranks; devices is 3/],
  [
    'ranks that differ',
    [[...zeros([[1, 2]])[0], ...zeros([[1, 3]])[0]]],
    { steps: 1 },
    /step 0\), rank 1: the batch is 1×3, but the step began with 1×2/,
  ],
  [
    'micro-batches that differ',
    zeros([
      [1, 2],
      [1, 3],
    ]),
    { ranks: 1, accumulateGradBatches: 2, steps: 1 },
    /entry 1 \(step 0\), rank 0/,
  ],
  [
    'nine shapes',
    zeros(Array.from({ length: 9 }, (_, i) => [1, i + 1])),
    { ranks: 1, steps: 9 },
    /9 shapes \(1×1, 1×2/,
  ],
  [
    'a token out of range',
    [[{ input: [[0], [1]], target: [[0], [97]] }]],
    { ranks: 1, steps: 1 },
    /entry 0 \(step 0\), rank 0, target\[1\]\[0\]: token 97 is out of range, model\.vocabSize is 97/,
  ],
])('refuses %s before the start', (_, json, options, message) => {
  expect(() => createBatchesStream(parseBatches(json, 'b.json'), { ...two, ...options })).toThrow(message);
});

it('takes eight shapes', () => {
  const file = parseBatches(zeros(Array.from({ length: 8 }, (_, i) => [1, i + 1])), 'b');
  expect(createBatchesStream(file, { ...two, ranks: 1, steps: 8 }).shape(7)).toEqual({ rows: 1, columns: 8 });
});
