import { CATEGORIES } from '../../engine/schedule/schedule.ts';
import {
  type CheckpointRecord,
  type EndEvent,
  fromWire,
  type RunEvent,
  type StepEvent,
} from '../../engine/trainer/events.ts';

/** One rank's steps, a column for each number; index i of every column is the same step. */
export interface RankColumns {
  readonly step: number[];
  readonly loss: number[];
  readonly lossMean: number[];
  readonly gradNorm: number[];
  readonly iterationMs: number[];
  readonly tokens: number[];
  /** Reserved after the step. */
  readonly currentBytes: number[];
  /** Most reserved so far. */
  readonly peakBytes: number[];
  readonly liveBytes: number[];
  /** In the order of CATEGORIES. */
  readonly byCategory: readonly number[][];
  /** Of the last step only. */
  hostBytes: number;
  allocRetries: number;
  ooms: number;
}

/** One line of the run's log. */
export interface LogLine {
  readonly seq: number;
  readonly rank: number | null;
  readonly line: string;
}

/** All that a run has reported, in the order of its sequence. Mutable: `lastSeq` tells two states apart. */
export interface RunLog {
  lastSeq: number;
  params: number | null;
  end: EndEvent | null;
  readonly ranks: Map<number, RankColumns>;
  readonly summaries: Map<number, string>;
  readonly checkpoints: CheckpointRecord[];
  /** Held-out losses, by the step after which they were taken. */
  readonly validation: { readonly step: number[]; readonly loss: number[] };
  readonly lines: LogLine[];
  /** Log lines that were let go, oldest first, to bound the page's memory. */
  linesDropped: number;
}

/** An event with its place in the run's sequence, as /events gives it. */
export type SequencedEvent = RunEvent & { seq: number };

const MAX_LINES = 5000;

export function emptyRunLog(): RunLog {
  return {
    lastSeq: 0,
    params: null,
    end: null,
    ranks: new Map(),
    summaries: new Map(),
    checkpoints: [],
    validation: { step: [], loss: [] },
    lines: [],
    linesDropped: 0,
  };
}

/**
 * Appends events in sequence. Events already there are skipped, and the first one that would leave a hole ends the append:
 * the caller pulls again from `log.lastSeq`. Returns how many were appended.
 */
export function appendEvents(log: RunLog, events: readonly SequencedEvent[]): number {
  let appended = 0;
  for (const event of events) {
    if (event.seq <= log.lastSeq) continue;
    if (event.seq !== log.lastSeq + 1) break;
    log.lastSeq = event.seq;
    appended++;
    appendOne(log, event);
  }
  return appended;
}

function appendOne(log: RunLog, event: SequencedEvent): void {
  switch (event.event) {
    case 'start':
      log.params = event.params;
      break;
    case 'step':
      appendStep(log, event);
      break;
    case 'validation':
      log.validation.step.push(event.step);
      log.validation.loss.push(fromWire(event.loss));
      break;
    case 'checkpoint':
      log.checkpoints.push({ path: event.path, format: event.format, step: event.step, sha256: event.sha256 });
      break;
    case 'summary':
      log.summaries.set(event.rank, event.text);
      break;
    case 'log':
      log.lines.push({ seq: event.seq, rank: event.rank, line: event.line });
      if (log.lines.length > MAX_LINES) {
        const surplus = log.lines.length - MAX_LINES;
        log.lines.splice(0, surplus);
        log.linesDropped += surplus;
      }
      break;
    case 'end':
      log.end = event;
      break;
    default:
      // A newer server may report what this page does not know; its place in the sequence is kept.
      event satisfies never;
  }
}

function appendStep(log: RunLog, event: StepEvent): void {
  let columns = log.ranks.get(event.rank);
  if (!columns) {
    columns = emptyColumns();
    log.ranks.set(event.rank, columns);
  }
  // A run that goes on from an older checkpoint reports its steps again: the newer attempt replaces the older one, so
  // that a chart's x always increases.
  while (columns.step.length && columns.step[columns.step.length - 1] >= event.step) dropLast(columns);
  columns.step.push(event.step);
  columns.loss.push(fromWire(event.loss));
  columns.lossMean.push(fromWire(event.lossMean));
  columns.gradNorm.push(fromWire(event.gradNorm));
  columns.iterationMs.push(event.iterationMs);
  columns.tokens.push(event.tokens);
  columns.currentBytes.push(event.memory.currentBytes);
  columns.peakBytes.push(event.memory.peakBytes);
  columns.liveBytes.push(event.memory.liveBytes);
  CATEGORIES.forEach((category, i) => {
    columns.byCategory[i].push(event.memory.byCategory[category]);
  });
  columns.hostBytes = event.memory.hostBytes;
  columns.allocRetries = event.memory.allocRetries;
  columns.ooms = event.memory.ooms;
}

function emptyColumns(): RankColumns {
  return {
    step: [],
    loss: [],
    lossMean: [],
    gradNorm: [],
    iterationMs: [],
    tokens: [],
    currentBytes: [],
    peakBytes: [],
    liveBytes: [],
    byCategory: CATEGORIES.map(() => []),
    hostBytes: 0,
    allocRetries: 0,
    ooms: 0,
  };
}

function dropLast(columns: RankColumns): void {
  const { step, loss, lossMean, gradNorm, iterationMs, tokens, currentBytes, peakBytes, liveBytes } = columns;
  for (const column of [step, loss, lossMean, gradNorm, iterationMs, tokens, currentBytes, peakBytes, liveBytes])
    column.pop();
  for (const column of columns.byCategory) column.pop();
}
