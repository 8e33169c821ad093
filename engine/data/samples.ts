import { StudioError } from '../errors.ts';
import { type Corpus, countSamples } from './corpus.ts';

/** What one rank computes on in one micro-batch: token ids, both [rows, columns], row by row. */
export interface Batch {
  readonly input: Int32Array;
  readonly target: Int32Array;
  readonly rows: number;
  readonly columns: number;
}

export interface BatchShape {
  readonly rows: number;
  readonly columns: number;
}

/** Where the ranks of a run get their batches. Steps are optimizer steps and count from 0, on through resumes. */
export interface BatchStream {
  /** Every token is below this. */
  readonly vocabSize: number;
  /** Rows of a batch of the first step. */
  readonly batchSize: number;
  /** Columns of a batch of the first step. */
  readonly tokensPerSample: number;
  /** The shape of every micro-batch of every rank in `step`. */
  shape(step: number): BatchShape;
  /** Throws `internal` if the micro-batch or rank is not of this run. */
  batch(step: number, micro: number, rank: number): Batch;
  /** Samples of the order that lie behind the run when it stands before `step`: what a checkpoint stores. */
  samplesConsumed(step: number): number;
}

/** How many ranks and micro-batches share the samples. */
export interface StreamLayout {
  readonly ranks: number;
  readonly accumulateGradBatches: number;
}

export interface BlockOptions extends StreamLayout {
  readonly blockSize: number;
  readonly batchSize: number;
  /** data.seed, an unsigned 32-bit integer */
  readonly seed: number;
  /** Where a resumed run goes on: the step it stands before, and the samples consumed by then. */
  readonly resume?: { readonly step: number; readonly samples: number };
}

/**
 * The order of `count` samples in one epoch, a function of (seed, epoch) alone: Fisher–Yates from the identity, for
 * i = count − 1 down to 1 exchanging i with floor(h · (i + 1) / 2^32), where h is the 32-bit hash of (seed, epoch, i).
 * The bias of a place is below count / 2^32.
 */
export function epochOrder(count: number, seed: number, epoch: number): Uint32Array {
  const order = Uint32Array.from({ length: count }, (_, i) => i);
  const key = hash(hash(0, seed), epoch);
  for (let i = count - 1; i > 0; i--) {
    const other = Math.floor((hash(key, i) / 2 ** 32) * (i + 1));
    const sample = order[i];
    order[i] = order[other];
    order[other] = sample;
  }
  return order;
}

/** The finaliser of MurmurHash3 over a key plus a counter that a Weyl constant spreads. Unsigned 32 bits. */
function hash(key: number, counter: number): number {
  let h = key ^ Math.imul(counter + 1, 0x9e3779b9);
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

/**
 * Batches of a text cut into blocks of k = blockSize tokens. Sample i is input tokens[i·k …], target one token further,
 * k of each. With W ranks, batch B and m micro-batches, step s of an epoch gives micro-batch j of rank r the samples
 * ((s·m + j)·W + r)·B … + B − 1 of the epoch's order. An epoch has floor(samples / (W·B·m)) steps: it ends when a whole
 * step no longer fits, and the samples left over are skipped on all ranks alike and count as consumed. So a count of
 * samples consumed is a place in the order of all epochs, whatever W, B and m were, and a resume under others goes on
 * from there: its first epoch is what is left of the one under way.
 *
 * Throws `bad-data` if an epoch has no whole step.
 */
export function createBlockStream(corpus: Corpus, options: BlockOptions): BatchStream {
  const { blockSize, batchSize, seed, ranks, accumulateGradBatches } = options;
  const samples = countSamples(corpus.tokens.length, blockSize);
  const perStep = ranks * batchSize * accumulateGradBatches;
  const stepsPerEpoch = Math.floor(samples / perStep);
  if (stepsPerEpoch === 0) {
    throw new StudioError(
      'bad-data',
      `The text ${corpus.path ?? corpus.kind} has ${corpus.tokens.length} tokens: ${samples} samples of data.blockSize ` +
        `${blockSize}. One step takes ${perStep} (devices ${ranks} × data.batchSize ${batchSize} × ` +
        `trainer.accumulateGradBatches ${accumulateGradBatches}). Use a longer text or lower one of these.`,
      { tokens: corpus.tokens.length, samples, samplesPerStep: perStep },
    );
  }

  const start = options.resume ?? { step: 0, samples: 0 };
  const startEpoch = Math.floor(start.samples / samples);
  const startOffset = start.samples % samples;
  const stepsLeft = Math.floor((samples - startOffset) / perStep);

  const placeOf = (step: number): { epoch: number; offset: number } => {
    const done = step - start.step;
    if (done < stepsLeft) return { epoch: startEpoch, offset: startOffset + done * perStep };
    const later = done - stepsLeft;
    return {
      epoch: startEpoch + 1 + Math.floor(later / stepsPerEpoch),
      offset: (later % stepsPerEpoch) * perStep,
    };
  };

  let shuffled: { epoch: number; order: Uint32Array } = { epoch: -1, order: new Uint32Array(0) };
  const orderOf = (epoch: number) => {
    if (shuffled.epoch !== epoch) shuffled = { epoch, order: epochOrder(samples, seed, epoch) };
    return shuffled.order;
  };

  return {
    vocabSize: corpus.vocabSize,
    batchSize,
    tokensPerSample: blockSize,
    shape: () => ({ rows: batchSize, columns: blockSize }),
    batch(step, micro, rank) {
      requireInRun(options, micro, rank);
      const { epoch, offset } = placeOf(step);
      const order = orderOf(epoch);
      const first = offset + (micro * ranks + rank) * batchSize;
      const input = new Int32Array(batchSize * blockSize);
      const target = new Int32Array(batchSize * blockSize);
      for (let row = 0; row < batchSize; row++) {
        const from = order[first + row] * blockSize;
        input.set(corpus.tokens.subarray(from, from + blockSize), row * blockSize);
        target.set(corpus.tokens.subarray(from + 1, from + 1 + blockSize), row * blockSize);
      }
      return { input, target, rows: batchSize, columns: blockSize };
    },
    samplesConsumed(step) {
      const { epoch, offset } = placeOf(step);
      return epoch * samples + offset;
    },
  };
}

/** Throws `internal` for a micro-batch or rank that the run does not have: it would get another's samples. */
export function requireInRun(layout: StreamLayout, micro: number, rank: number): void {
  if (micro >= 0 && micro < layout.accumulateGradBatches && rank >= 0 && rank < layout.ranks) return;
  throw new StudioError(
    'internal',
    `No micro-batch ${micro} of rank ${rank} in a run of ${layout.ranks} ranks and ` +
      `${layout.accumulateGradBatches} micro-batches.`,
  );
}
