import { CATEGORIES } from '../../engine/schedule/schedule.ts';
import type { RankColumns, RunLog } from './run-log.ts';

/** Values for a chart: null is a gap. Nothing in here is NaN or infinite, which would leave a chart without a scale. */
export type ChartColumn = (number | null)[];

/** A number that a chart could not draw, said in words beside it. */
export interface NonFinite {
  readonly step: number;
  readonly rank: number;
  readonly word: string;
}

/** Ranks in their order. */
export function ranksOf(log: RunLog): number[] {
  return [...log.ranks.keys()].sort((a, b) => a - b);
}

/** All steps that any of the columns has, increasing. */
export function unionOfSteps(columns: readonly { readonly step: readonly number[] }[]): number[] {
  const longest = columns.reduce<readonly number[]>((a, { step }) => (step.length > a.length ? step : a), []);
  // Ranks advance together: nearly always the shorter ones are the beginning of the longest.
  if (columns.every(({ step }) => isBeginning(step, longest))) return [...longest];
  return [...new Set(columns.flatMap(({ step }) => step))].sort((a, b) => a - b);
}

function isBeginning(part: readonly number[], whole: readonly number[]): boolean {
  return part.every((step, i) => step === whole[i]);
}

/** One column brought to the steps `x`: null where the rank has none, and where the number is not finite. */
export function alignColumn(x: readonly number[], step: readonly number[], values: readonly number[]): ChartColumn {
  const aligned: ChartColumn = new Array(x.length).fill(null);
  let at = 0;
  for (let i = 0; i < step.length; i++) {
    while (at < x.length && x[at] < step[i]) at++;
    if (at < x.length && x[at] === step[i] && Number.isFinite(values[i])) aligned[at] = values[i];
  }
  return aligned;
}

/** The losses that are not finite, first to last, at most `limit` of them. */
export function nonFiniteLosses(log: RunLog, limit: number): NonFinite[] {
  const found: NonFinite[] = [];
  for (const rank of ranksOf(log)) {
    const { step, loss } = log.ranks.get(rank) as RankColumns;
    for (let i = 0; i < loss.length && found.length < limit; i++)
      if (!Number.isFinite(loss[i])) found.push({ step: step[i], rank, word: String(loss[i]) });
  }
  return found.sort((a, b) => a.step - b.step || a.rank - b.rank);
}

/** The sum up to and including each column, from the first: what a stacked area draws. A gap counts as nothing. */
export function stack(columns: readonly ChartColumn[]): ChartColumn[] {
  let below: ChartColumn | null = null;
  return columns.map((column) => {
    const sum: ChartColumn = column.map((value, i) => {
      const under = below?.[i] ?? null;
      return value === null && under === null ? null : (value ?? 0) + (under ?? 0);
    });
    below = sum;
    return sum;
  });
}

/** The middle value, or null of none; the mean of the two in the middle of an even count. */
export function median(values: readonly number[]): number | null {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** The middle, the least and the most of a run's step times, each that of the slowest rank. */
export interface StepTimes {
  readonly medianMs: number;
  readonly minMs: number;
  readonly maxMs: number;
  readonly steps: number;
}

/**
 * Over the steps that all ranks of the log have, but its first, which pays for what is made once; null while there is none.
 */
export function stepTimesOf(log: RunLog): StepTimes | null {
  const [first, ...others] = [...log.ranks.values()];
  if (!first) return null;
  const byStep = others.map(({ step, iterationMs }) => new Map(step.map((of, i) => [of, iterationMs[i]] as const)));
  const slowest = first.step.slice(1).flatMap((step, i) => {
    const ofRanks = [first.iterationMs[i + 1], ...byStep.map((times) => times.get(step) ?? Number.NaN)];
    const ms = Math.max(...ofRanks);
    return Number.isNaN(ms) ? [] : [ms];
  });
  const medianMs = median(slowest);
  if (medianMs === null) return null;
  const [minMs, maxMs] = [Math.min, Math.max].map((pick) => slowest.reduce((a, b) => pick(a, b)));
  return { medianMs, minMs, maxMs, steps: slowest.length };
}

/** The rank that had most reserved, with its fullest step's live bytes by category. */
export function fullestRank(
  log: RunLog,
): { rank: number; peakBytes: number; liveBytes: number; byCategory: number[] } | null {
  let fullest: ReturnType<typeof fullestRank> = null;
  for (const rank of ranksOf(log)) {
    const columns = log.ranks.get(rank) as RankColumns;
    const peakBytes = columns.peakBytes.at(-1) ?? 0;
    if (fullest && fullest.peakBytes >= peakBytes) continue;
    const at = columns.liveBytes.reduce((best, bytes, i) => (bytes > columns.liveBytes[best] ? i : best), 0);
    fullest = {
      rank,
      peakBytes,
      liveBytes: columns.liveBytes[at] ?? 0,
      byCategory: CATEGORIES.map((_, i) => columns.byCategory[i][at] ?? 0),
    };
  }
  return fullest;
}

/**
 * The top of a scale for all values but each column's first, where the first ones tower over them (twice as high or more);
 * null where they do not, or where there are too few to say.
 */
export function scaleAfterFirst(columns: readonly (readonly number[])[]): { maxY: number; firstMs: number } | null {
  const first = Math.max(...columns.map((column) => column[0] ?? 0));
  let rest = 0;
  for (const column of columns) for (let i = 1; i < column.length; i++) rest = Math.max(rest, column[i]);
  const enough = columns.length > 0 && columns.every((column) => column.length >= 3);
  return enough && first >= 2 * rest && rest > 0 ? { maxY: rest * 1.25, firstMs: first } : null;
}
