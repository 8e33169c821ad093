import { counted } from '../counted.ts';
import { StudioError } from '../errors.ts';
import { type Batch, type BatchShape, type BatchStream, requireInRun, type StreamLayout } from './samples.ts';

/** A step is compiled for one shape, so this bounds what is compiled before step 0. */
export const MAX_SHAPES = 8;

const MAX_TOKEN = 2 ** 31 - 1;

export interface BatchesFile {
  /** How errors call it: its path. */
  readonly name: string;
  /** entries[entry][rank]; an entry is one micro-batch of all ranks. */
  readonly entries: readonly (readonly Batch[])[];
}

export interface BatchesOptions extends StreamLayout {
  /** The run takes steps up to steps − 1. */
  readonly steps: number;
  /** Of the model; null: one more than the largest token that the run reads. */
  readonly vocabSize: number | null;
  /** Where a resumed run goes on: the step it stands before, and the samples consumed by then; null where nothing says it. */
  readonly resume?: { readonly step: number; readonly samples: number | null };
}

/**
 * Reads parsed JSON of the form batches[entry][rank] = {input, target}, both [T] or both [B][T] of token ids ≥ 0.
 * Throws `bad-data` naming the file and the entry, rank and place. No message quotes what is not a number.
 */
export function parseBatches(json: unknown, name: string): BatchesFile {
  if (!Array.isArray(json) || json.length === 0) {
    throw new StudioError('bad-data', `${name}: expected a list, batches[step][rank] = {"input", "target"}.`);
  }
  const entries = json.map((ranks: unknown, entry) => {
    if (!Array.isArray(ranks) || ranks.length === 0) {
      throw new StudioError('bad-data', `${name}: entry ${entry} is not a list with a batch for each rank.`, { entry });
    }
    return ranks.map((batch: unknown, rank) => parseBatch(batch, name, entry, rank));
  });
  return { name, entries };
}

function parseBatch(value: unknown, name: string, entry: number, rank: number): Batch {
  const refuse = (what: string): never => {
    throw new StudioError('bad-data', `${name}: entry ${entry}, rank ${rank}: ${what}.`, { entry, rank });
  };

  const parseTokens = (field: 'input' | 'target'): BatchShape & { tokens: Int32Array } => {
    const list = (value as Record<string, unknown> | null)?.[field];
    if (!Array.isArray(list) || list.length === 0) return refuse(`${field} is not a list of tokens, [T] or [B][T]`);
    const nested = Array.isArray(list[0]);
    const rows: unknown[] = nested ? list : [list];
    const columns = (rows[0] as unknown[]).length;
    if (columns === 0) return refuse(`${field} has an empty row`);
    const tokens = new Int32Array(rows.length * columns);
    for (const [y, row] of rows.entries()) {
      if (!Array.isArray(row) || row.length !== columns) return refuse(`row ${y} of ${field} is not ${columns} tokens`);
      for (const [x, token] of row.entries() as ArrayIterator<[number, unknown]>) {
        if (typeof token !== 'number' || !Number.isInteger(token) || token < 0 || token > MAX_TOKEN) {
          const place = nested ? `${field}[${y}][${x}]` : `${field}[${x}]`;
          return refuse(`${place} is ${typeof token === 'number' ? token : `a ${typeof token}`}, not a token id`);
        }
        tokens[y * columns + x] = token;
      }
    }
    return { rows: rows.length, columns, tokens };
  };

  const input = parseTokens('input');
  const target = parseTokens('target');
  if (!sameShape(input, target)) refuse(`input is ${shapeText(input)} and target ${shapeText(target)}`);
  return { input: input.tokens, target: target.tokens, rows: input.rows, columns: input.columns };
}

/**
 * Batches of a file: step s with k micro-batches takes entries s·k … s·k + k − 1, and rank r the r-th of each; a run with
 * fewer ranks than the file leaves the last ones unread. Those count as consumed, so that a count of samples is a place in
 * the file whatever the ranks and micro-batches were: a resume under others goes on with the first entry not begun.
 *
 * All refusals come here, before a run starts, as `bad-data`: too few entries for the steps, more ranks than an entry
 * has, ranks or micro-batches of one step that differ in shape, more than 8 distinct shapes, a token at or above vocabSize.
 */
export function createBatchesStream(file: BatchesFile, options: BatchesOptions): BatchStream {
  const { name, entries } = file;
  const { ranks, accumulateGradBatches: micros, steps } = options;
  const samplesBefore = [0];
  for (const [entry, { length, 0: first }] of entries.entries())
    samplesBefore.push(samplesBefore[entry] + length * first.rows);
  const { step: startStep, samples } = options.resume ?? { step: 0, samples: 0 };
  const found = samples === null ? startStep * micros : samplesBefore.findIndex((before) => before >= samples);
  const startEntry = found < 0 ? entries.length : found;
  const entryOf = (step: number) => startEntry + (step - startStep) * micros;

  const needed = entryOf(steps);
  if (entries.length < needed) {
    const most = startStep + Math.max(0, Math.floor((entries.length - startEntry) / micros));
    const wanted =
      startStep === 0
        ? `trainer.steps ${steps} × trainer.accumulateGradBatches ${micros} takes ${needed}`
        : `steps ${startStep} to ${steps - 1} take ${micros} each from entry ${startEntry} on, ${needed} in all`;
    throw new StudioError(
      'bad-data',
      `${name} has ${entries.length} entries; ${wanted}. Lower trainer.steps to ${most} or add entries.`,
      { entries: entries.length, needed },
    );
  }

  const shapes: BatchShape[] = [];
  let maxToken = 0;
  for (let entry = startEntry; entry < needed; entry++) {
    const step = startStep + Math.floor((entry - startEntry) / micros);
    const where = `${name}: entry ${entry} (step ${step})`;
    if (entries[entry].length < ranks) {
      throw new StudioError(
        'bad-data',
        `${where} has batches for ${counted(entries[entry].length, 'rank')}; devices is ${ranks}. Lower devices or add batches.`,
        { entry, step, ranks: entries[entry].length },
      );
    }
    shapes[step - startStep] ??= { rows: entries[entry][0].rows, columns: entries[entry][0].columns };
    for (let rank = 0; rank < ranks; rank++) {
      const batch = entries[entry][rank];
      const shape = shapes[step - startStep];
      if (!sameShape(batch, shape)) {
        throw new StudioError(
          'bad-data',
          `${where}, rank ${rank}: the batch is ${shapeText(batch)}, but the step began with ${shapeText(shape)}. ` +
            'All ranks and micro-batches of one step need one shape.',
          { entry, step, rank },
        );
      }
      maxToken = Math.max(maxToken, checkTokens(batch, options.vocabSize, `${where}, rank ${rank}`));
    }
  }

  const distinct = new Set(shapes.map(shapeText));
  if (distinct.size > MAX_SHAPES) {
    throw new StudioError(
      'bad-data',
      `${name} has batches of ${distinct.size} shapes (${[...distinct].join(', ')}). Each is compiled by itself, at most ` +
        `${MAX_SHAPES}: pad batches to fewer shapes, or split the file.`,
      { shapes: [...distinct] },
    );
  }

  return {
    vocabSize: options.vocabSize ?? maxToken + 1,
    batchSize: entries[startEntry][0].rows,
    tokensPerSample: entries[startEntry][0].columns,
    shape: (step) => shapes[step - startStep],
    batch(step, micro, rank) {
      requireInRun(options, micro, rank);
      return entries[entryOf(step) + micro][rank];
    },
    samplesConsumed: (step) => samplesBefore[entryOf(step)],
  };
}

/** The largest token; throws `bad-data` at the first one that the vocabulary does not have. */
function checkTokens(batch: Batch, vocabSize: number | null, where: string): number {
  let max = 0;
  for (const field of ['input', 'target'] as const) {
    const tokens = batch[field];
    for (let i = 0; i < tokens.length; i++) {
      if (vocabSize !== null && tokens[i] >= vocabSize) {
        const place = `${field}[${Math.floor(i / batch.columns)}][${i % batch.columns}]`;
        throw new StudioError(
          'bad-data',
          `${where}, ${place}: token ${tokens[i]} is out of range, model.vocabSize is ${vocabSize}.`,
          { place, token: tokens[i], vocabSize },
        );
      }
      max = Math.max(max, tokens[i]);
    }
  }
  return max;
}

function sameShape(a: BatchShape, b: BatchShape): boolean {
  return a.rows === b.rows && a.columns === b.columns;
}

function shapeText({ rows, columns }: BatchShape): string {
  return `${rows}×${columns}`;
}
