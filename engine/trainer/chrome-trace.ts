import { linkWords } from '../comm/simulated-link.ts';
import { CATEGORIES, type Lane } from '../schedule/schedule.ts';
import type { RankTrace } from './rank-trace.ts';

/** An event of Chrome's trace format (chrome://tracing, ui.perfetto.dev); times are in microseconds. */
export interface ChromeEvent {
  readonly ph: 'M' | 'X' | 'C';
  readonly pid: number;
  readonly tid?: number;
  readonly name: string;
  readonly cat?: string;
  readonly ts?: number;
  readonly dur?: number;
  readonly args: Readonly<Record<string, unknown>>;
}

export interface ChromeTrace {
  readonly displayTimeUnit: 'ms';
  readonly otherData: Readonly<Record<string, unknown>>;
  readonly traceEvents: readonly ChromeEvent[];
}

export const LANES = ['compute', 'comm', 'host'] as const satisfies readonly Lane[];
/** What a lane may show one below the other; a lane has one row unless its steps overlap (publications under way). */
const ROWS_PER_LANE = 100;

/** A slice of a lane: a step of the schedule (`step` is its id), or a wait before or inside one. */
export interface Slice {
  readonly kind: 'step' | 'wait';
  readonly step: number;
  readonly row: number;
  readonly startMs: number;
  readonly endMs: number;
  /** Of a wait: what for. */
  readonly for: string | null;
}

/**
 * The slices of a lane in rows, so that in a row nothing overlaps but a wait with the step that it is inside of. Times are
 * from the rank's `startMs` on.
 */
export function slicesOf({ steps, waits }: RankTrace, lane: Lane): Slice[] {
  const inside: Omit<Slice, 'row'>[] = [];
  const outside: Omit<Slice, 'row'>[] = [];
  steps.forEach(({ startMs, endMs, ...step }, id) => {
    if (step.lane === lane) outside.push({ kind: 'step', step: id, startMs, endMs, for: null });
  });
  for (const wait of waits) {
    const step = steps[wait.step];
    if (step.lane !== lane) continue;
    const isInside = wait.startMs >= step.startMs && wait.endMs <= step.endMs;
    (isInside ? inside : outside).push({ kind: 'wait', ...wait });
  }
  outside.sort((a, b) => a.startMs - b.startMs || a.endMs - b.endMs);
  const freeAtMs: number[] = [];
  const rowOfStep = new Map<number, number>();
  const placed = outside.map((slice): Slice => {
    const free = freeAtMs.findIndex((atMs) => atMs <= slice.startMs);
    const row = free < 0 ? freeAtMs.length : free;
    freeAtMs[row] = slice.endMs;
    if (slice.kind === 'step') rowOfStep.set(slice.step, row);
    return { ...slice, row };
  });
  return [...placed, ...inTurn(inside).map((slice) => ({ ...slice, row: rowOfStep.get(slice.step)! }))];
}

/** Waits of one step for several peers at once, as waits for one after the other in the order in which they end. */
function inTurn(waits: readonly Omit<Slice, 'row'>[]): Omit<Slice, 'row'>[] {
  const freeAtMs = new Map<number, number>();
  return [...waits]
    .sort((a, b) => a.endMs - b.endMs || a.startMs - b.startMs)
    .map((wait) => {
      const startMs = Math.max(wait.startMs, freeAtMs.get(wait.step) ?? 0);
      freeAtMs.set(wait.step, wait.endMs);
      return { ...wait, startMs };
    });
}

/** One trace of all ranks: a process a rank, a thread a lane, live bytes as counters. Ranks share the machine's clock. */
export function chromeTrace(ranks: readonly RankTrace[]): ChromeTrace {
  const zeroMs = Math.min(...ranks.map(({ startMs }) => startMs));
  const [{ simulatedLinkGBps }] = ranks;
  return {
    displayTimeUnit: 'ms',
    otherData: {
      step: ranks[0].step,
      ranks: ranks.length,
      computeClock: ranks.map(({ computeClock }) => clockWords(computeClock)),
      otherLanes: 'host clock',
      ...(simulatedLinkGBps === undefined ? {} : { simulatedLinkGBps }),
    },
    traceEvents: ranks.flatMap((rank) => rankEvents(rank, zeroMs)),
  };
}

/** Who kept the time of the compute lane, as a person reads it. */
export function clockWords(clock: RankTrace['computeClock']): string {
  return clock.kind === 'device'
    ? `device clock, aligned with the host's within ${(clock.alignedWithinMs * 1000).toFixed(0)} µs`
    : 'host clock: each compute step submitted alone and awaited';
}

function rankEvents(trace: RankTrace, zeroMs: number): ChromeEvent[] {
  const { rank: pid, steps, live, computeClock } = trace;
  const micros = (ms: number) => Math.round((trace.startMs - zeroMs + ms) * 1e6) / 1e3;
  const named = (name: string, args: ChromeEvent['args'], tid?: number): ChromeEvent => ({
    ph: 'M',
    pid,
    ...(tid === undefined ? {} : { tid }),
    name,
    args,
  });
  const link = trace.simulatedLinkGBps === undefined ? '' : ` (${linkWords(trace.simulatedLinkGBps)})`;
  const events = [named('process_name', { name: `rank ${pid}` }), named('process_sort_index', { sort_index: pid })];
  for (const [laneIndex, lane] of LANES.entries()) {
    const slices = slicesOf(trace, lane);
    const rows = Math.max(1, ...slices.map(({ row }) => row + 1));
    const tidOf = (row: number) => 1 + laneIndex * ROWS_PER_LANE + row;
    for (let row = 0; row < rows; row++) {
      const note = lane === 'compute' ? ` (${clockWords(computeClock)})` : lane === 'comm' ? link : '';
      events.push(named('thread_name', { name: `${lane}${row ? ` ${row + 1}` : ''}${note}` }, tidOf(row)));
      events.push(named('thread_sort_index', { sort_index: tidOf(row) }, tidOf(row)));
    }
    for (const slice of slices) {
      const { label, kind, unit, phase, liveBytes } = steps[slice.step];
      const isWait = slice.kind === 'wait';
      const ts = micros(slice.startMs);
      events.push({
        ph: 'X',
        pid,
        tid: tidOf(slice.row),
        name: isWait ? `waits for ${slice.for}` : label,
        cat: isWait ? 'wait' : kind,
        ts,
        dur: Math.round((micros(slice.endMs) - ts) * 1e3) / 1e3,
        args: isWait
          ? { step: slice.step, for: slice.for, before: label }
          : { step: slice.step, unit, kind, phase, liveBytes },
      });
    }
  }
  for (const { atMs, byCategory } of live) {
    const total = byCategory.reduce((sum, bytes) => sum + bytes, 0);
    const split = Object.fromEntries(CATEGORIES.map((category, i) => [category, byCategory[i]]));
    events.push({ ph: 'C', pid, name: 'live bytes', ts: micros(atMs), args: { live: total } });
    events.push({ ph: 'C', pid, name: 'live bytes by category', ts: micros(atMs), args: split });
  }
  return events;
}
