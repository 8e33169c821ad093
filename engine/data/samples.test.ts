import fc from 'fast-check';
import { expect, it } from 'vitest';
import { StudioError } from '../errors.ts';
import { type Corpus, corpusInfo, countSamples } from './corpus.ts';
import { type BatchStream, type BlockOptions, createBlockStream, epochOrder } from './samples.ts';

/** Token i is i, so that a token says where it came from. */
function counting(tokens: number): Corpus {
  const ids = Int32Array.from({ length: tokens }, (_, i) => i);
  return { kind: 'wikitext2', path: 'text.txt', tokens: ids, words: [], vocabSize: tokens, sha256: '' };
}

const plain: BlockOptions = { blockSize: 1, batchSize: 1, seed: 1, ranks: 1, accumulateGradBatches: 1 };

/** The samples of one step in the order that the design gives them: by micro-batch, then rank, then row. */
function samplesOf(
  stream: BatchStream,
  step: number,
  { ranks, accumulateGradBatches, blockSize }: BlockOptions,
): number[] {
  const samples: number[] = [];
  for (let micro = 0; micro < accumulateGradBatches; micro++) {
    for (let rank = 0; rank < ranks; rank++) {
      const { input, rows, columns } = stream.batch(step, micro, rank);
      for (let row = 0; row < rows; row++) samples.push(input[row * columns] / blockSize);
    }
  }
  return samples;
}

it('counts samples as len() of the WikiText2 class does', () => {
  expect(countSamples(2_088_628, 35)).toBe(59_674);
  expect([0, 34, 69, 70, 104, 105].map((tokens) => countSamples(tokens, 35))).toEqual([0, 0, 0, 1, 1, 2]);
  expect(corpusInfo(counting(105), 35)).toEqual({
    kind: 'wikitext2',
    path: 'text.txt',
    vocabSize: 105,
    tokens: 105,
    samples: 2,
  });
});

it('gives blocks and the same blocks one token on', () => {
  const stream = createBlockStream(counting(20), { ...plain, blockSize: 4, batchSize: 2 });
  const { input, target, rows, columns } = stream.batch(0, 0, 0);
  expect([rows, columns]).toEqual([2, 4]);
  for (const row of [0, 1]) {
    const from = input[4 * row];
    expect(from % 4).toBe(0);
    expect([...input.subarray(4 * row, 4 * row + 4)]).toEqual([from, from + 1, from + 2, from + 3]);
  }
  expect([...target]).toEqual([...input].map((token) => token + 1));
});

it('keeps the order it has always had', () => {
  // From the doc comments, with Python's integers.
  expect([...epochOrder(12, 1, 0)]).toEqual([0, 9, 7, 3, 2, 1, 10, 5, 6, 4, 8, 11]);
  expect([...epochOrder(12, 1, 1)]).toEqual([8, 6, 10, 9, 3, 2, 1, 5, 4, 11, 7, 0]);
  expect([...epochOrder(12, 0xffffffff, 0)]).toEqual([7, 1, 11, 6, 9, 8, 4, 5, 0, 2, 10, 3]);
});

it('puts every sample at every place about equally often', () => {
  const counts = Array.from({ length: 8 }, () => new Array<number>(8).fill(0));
  for (let epoch = 0; epoch < 4000; epoch++) {
    for (const [place, sample] of epochOrder(8, 7, epoch).entries()) counts[place][sample]++;
  }
  // 500 expected, standard deviation 21.
  expect(Math.min(...counts.flat())).toBeGreaterThan(400);
  expect(Math.max(...counts.flat())).toBeLessThan(600);
});

const layouts = fc.record({
  blockSize: fc.integer({ min: 1, max: 4 }),
  batchSize: fc.integer({ min: 1, max: 4 }),
  seed: fc.integer({ min: 0, max: 0xffffffff }),
  ranks: fc.integer({ min: 1, max: 8 }),
  accumulateGradBatches: fc.integer({ min: 1, max: 3 }),
});

it('gives the order of the epoch whatever the world size, each sample once, the rest of a step dropped', () => {
  fc.assert(
    fc.property(layouts, fc.integer({ min: 1, max: 3 }), fc.nat(90), (options, steps, extra) => {
      const perStep = options.ranks * options.batchSize * options.accumulateGradBatches;
      const samples = steps * perStep + (extra % perStep);
      const stream = createBlockStream(counting((samples + 1) * options.blockSize), options);
      for (let epoch = 0; epoch < 3; epoch++) {
        const used = Array.from({ length: steps }, (_, s) => samplesOf(stream, epoch * steps + s, options)).flat();
        expect(used).toEqual([...epochOrder(samples, options.seed, epoch)].slice(0, steps * perStep));
        expect(new Set(used).size).toBe(used.length);
        expect(stream.samplesConsumed(epoch * steps)).toBe(epoch * samples);
      }
    }),
    { seed: 1, numRuns: 100 },
  );
});

it('resumes where a run stood, also at another world size, batch and accumulation', () => {
  fc.assert(
    fc.property(layouts, layouts, fc.nat(40), (before, after, step) => {
      const samples = 100;
      const blockSize = before.blockSize;
      const corpus = counting((samples + 1) * blockSize);
      const first = createBlockStream(corpus, before);
      const consumed = first.samplesConsumed(step);
      const options = { ...after, blockSize, seed: before.seed, resume: { step, samples: consumed } };
      const resumed = createBlockStream(corpus, options);

      const perStep = after.ranks * after.batchSize * after.accumulateGradBatches;
      const fits = (consumed % samples) + perStep <= samples;
      const epoch = Math.floor(consumed / samples) + (fits ? 0 : 1);
      const place = fits ? consumed % samples : 0;
      expect(samplesOf(resumed, step, options)).toEqual(
        [...epochOrder(samples, before.seed, epoch)].slice(place, place + perStep),
      );

      // Under the same layout a resumed run is the unbroken one.
      const again = createBlockStream(corpus, { ...before, resume: { step, samples: consumed } });
      for (const later of [step, step + 7, step + 120]) {
        expect(samplesOf(again, later, before)).toEqual(samplesOf(first, later, before));
        expect(again.samplesConsumed(later)).toBe(first.samplesConsumed(later));
      }
    }),
    { seed: 1, numRuns: 100 },
  );
});

it('refuses a text without one whole step, and says what a step takes', () => {
  const create = () => createBlockStream(counting(69), { ...plain, blockSize: 35, ranks: 2, accumulateGradBatches: 3 });
  expect(create).toThrow(StudioError);
  expect(create).toThrow(/text\.txt has 69 tokens: 0 samples of data\.blockSize 35\. One step takes 6 \(devices 2/);
});

it('refuses a rank or micro-batch that would get another’s samples', () => {
  const stream = createBlockStream(counting(100), { ...plain, ranks: 2 });
  expect(() => stream.batch(0, 0, 2)).toThrow(/No micro-batch 0 of rank 2/);
  expect(() => stream.batch(0, 1, 0)).toThrow(/No micro-batch 1 of rank 0/);
});
