import type { ExperimentConfig } from '../config.ts';
import { type BatchesFile, type BatchesOptions, createBatchesStream } from '../data/batches.ts';
import type { Corpus } from '../data/corpus.ts';
import { holdOut } from '../data/held-out.ts';
import { type BatchStream, createBlockStream } from '../data/samples.ts';
import { StudioError } from '../errors.ts';
import type { BatchShape } from '../model/model.ts';
import { readBatchesFile } from './batches-file.ts';
import { prepareCorpus } from './corpus.ts';

/** A run's data with what the model and the planner need to know of it. */
export interface RunData {
  /** For a run that begins before `step`, with so many samples of the order consumed (null: not known). */
  from(step: number, samples: number | null): RunBatches;
  /** The held-out part of the text, where the run validates. */
  readonly validation: BatchStream | null;
  /** Words of the data; null when the model's own size decides (a batches file). */
  readonly vocabSize: number | null;
}

export interface RunBatches {
  readonly batches: BatchStream;
  /** Distinct batch shapes, in the order of their first step. */
  readonly shapes: readonly BatchShape[];
}

/**
 * Opens the data of a config: prepares the corpus, once for all processes, or reads the batches file. Paths are absolute
 * or relative to the working directory. Throws StudioError `bad-data` and the like, before anything starts.
 */
export async function openRunData(config: ExperimentConfig, corpusFolder: string): Promise<RunData> {
  const { devices: ranks, trainer, data } = config;
  const { accumulateGradBatches } = trainer;
  if (data.kind === 'batches') {
    const file = await readBatchesFile(data.path);
    const { vocabSize } = config.model;
    const options = { ranks, accumulateGradBatches, steps: trainer.steps, vocabSize };
    return {
      from: (step, samples) => {
        const batches = createBatchesStream(file, { ...options, resume: { step, samples } });
        return { batches, shapes: distinctShapes(batches, step, trainer.steps) };
      },
      validation: null,
      vocabSize: vocabSize === null ? vocabularyOf(file, options) : null,
    };
  }
  const corpus = await prepareCorpus(data, corpusFolder);
  const { blockSize, batchSize, seed, validationFraction } = data;
  const { training, validation } = holdOut(corpus, validationFraction);
  const stream = (part: Corpus, micro: number, resume?: { step: number; samples: number }) => {
    try {
      return createBlockStream(part, { blockSize, batchSize, seed, ranks, accumulateGradBatches: micro, resume });
    } catch (cause) {
      if (!(cause instanceof StudioError) || validationFraction === 0) throw cause;
      const [kept, heldOut] = [training.tokens.length, validation.tokens.length];
      throw new StudioError(
        cause.code,
        `data.validationFraction ${validationFraction} leaves ${kept} tokens for training and ${heldOut} for validation. ` +
          cause.message,
        cause.details,
        { cause },
      );
    }
  };
  const fresh = stream(training, accumulateGradBatches);
  const shapes = [{ batch: batchSize, tokens: blockSize }];
  const validates = trainer.validateEvery !== null;
  return {
    from: (step, samples) => {
      const resume = { step, samples: samples ?? fresh.samplesConsumed(step) };
      return { batches: stream(training, accumulateGradBatches, resume), shapes };
    },
    validation: validates ? stream(validation, 1) : null,
    vocabSize: fresh.vocabSize,
  };
}

/** One more than the largest token of the steps that the file has, from its first entry on: what a resumed run began with. */
function vocabularyOf(file: BatchesFile, options: BatchesOptions): number {
  const steps = Math.min(options.steps, Math.floor(file.entries.length / options.accumulateGradBatches));
  return createBatchesStream(file, { ...options, steps }).vocabSize;
}

function distinctShapes(batches: BatchStream, start: number, steps: number): BatchShape[] {
  const seen = new Map<string, BatchShape>();
  for (let step = start; step < steps; step++) {
    const { rows, columns } = batches.shape(step);
    const key = `${rows}x${columns}`;
    if (!seen.has(key)) seen.set(key, { batch: rows, tokens: columns });
  }
  return [...seen.values()];
}
