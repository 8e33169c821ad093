import type { ExperimentConfig } from '../config.ts';
import { createBatchesStream } from '../data/batches.ts';
import type { Corpus } from '../data/corpus.ts';
import { holdOut } from '../data/held-out.ts';
import { type BatchStream, createBlockStream } from '../data/samples.ts';
import type { BatchShape } from '../model/model.ts';
import { readBatchesFile } from './batches-file.ts';
import { prepareCorpus } from './corpus.ts';

/** A run's data with what the model and the planner need to know of it. */
export interface RunData {
  readonly batches: BatchStream;
  /** The same order for a run that goes on before `step`, with so many samples of it consumed (null: not known). */
  batchesFrom(step: number, samples: number | null): BatchStream;
  /** The held-out part of the text, where the run validates. */
  readonly validation: BatchStream | null;
  /** Words of the data; null when the model's own size decides (a batches file). */
  readonly vocabSize: number | null;
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
    const { vocabSize } = config.model;
    const file = await readBatchesFile(data.path);
    const batches = createBatchesStream(file, { ranks, accumulateGradBatches, steps: trainer.steps, vocabSize });
    return {
      batches,
      batchesFrom: () => batches,
      validation: null,
      vocabSize: vocabSize === null ? batches.vocabSize : null,
      shapes: distinctShapes(batches, trainer.steps),
    };
  }
  const corpus = await prepareCorpus(data, corpusFolder);
  const { blockSize, batchSize, seed, validationFraction } = data;
  const { training, validation } = holdOut(corpus, validationFraction);
  const stream = (part: Corpus, micro: number, resume?: { step: number; samples: number }) =>
    createBlockStream(part, { blockSize, batchSize, seed, ranks, accumulateGradBatches: micro, resume });
  const batches = stream(training, accumulateGradBatches);
  const shapes = [{ batch: batchSize, tokens: blockSize }];
  const validates = trainer.validateEvery !== null;
  return {
    batches,
    batchesFrom: (step, samples) =>
      stream(training, accumulateGradBatches, { step, samples: samples ?? batches.samplesConsumed(step) }),
    validation: validates ? stream(validation, 1) : null,
    vocabSize: batches.vocabSize,
    shapes,
  };
}

function distinctShapes(batches: BatchStream, steps: number): BatchShape[] {
  const seen = new Map<string, BatchShape>();
  for (let step = 0; step < steps; step++) {
    const { rows, columns } = batches.shape(step);
    const key = `${rows}x${columns}`;
    if (!seen.has(key)) seen.set(key, { batch: rows, tokens: columns });
  }
  return [...seen.values()];
}
