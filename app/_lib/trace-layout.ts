import { LANES, type Slice, slicesOf } from '../../engine/trainer/chrome-trace.ts';
import type { RankTrace } from '../../engine/trainer/rank-trace.ts';

/** A trace of a step as it is drawn: for each rank its lanes one below the other, then its live bytes; one time axis. */

/** Pixels, from top to bottom of a rank. */
export const TITLE_PX = 26;
export const ROW_PX = 18;
export const ROW_GAP_PX = 3;
export const LIVE_PX = 56;
export const RANK_GAP_PX = 18;
export const AXIS_PX = 24;

/** The colours of memory's categories stand for the steps that move them, as under the predicted timeline. */
export const STEP_LOOKS: readonly { kinds: readonly string[]; label: string; colour: string }[] = [
  { kinds: ['compute'], label: 'compute', colour: 'var(--cat-activations)' },
  { kinds: ['all-gather'], label: 'all-gather', colour: 'var(--cat-gathered)' },
  { kinds: ['reduce-scatter', 'all-reduce'], label: 'reduce', colour: 'var(--cat-gradients)' },
  { kinds: ['optimizer'], label: 'optimizer step', colour: 'var(--cat-optimizer)' },
  { kinds: ['upload', 'download'], label: 'between host and device', colour: 'var(--cat-staging)' },
];
const FREE_COLOUR = 'var(--line-strong)';

export function stepColour(kind: string): string {
  return STEP_LOOKS.find(({ kinds }) => kinds.includes(kind))?.colour ?? FREE_COLOUR;
}

/**
 * From when on a slice is painted over by one that begins within it and lasts longer than `seenMs`: there its name must end.
 * Its own end where none does.
 */
export function uncoveredUntilMs({ slices }: TraceRow, index: number, seenMs: number): number {
  const { endMs } = slices[index];
  for (let next = index + 1; next < slices.length && slices[next].startMs < endMs; next++)
    if (slices[next].endMs - slices[next].startMs > seenMs) return slices[next].startMs;
  return endMs;
}

/** A slice in the time of all ranks, in milliseconds from the first of them. */
export type PlacedSlice = Slice & { readonly inside: boolean };

export interface TraceRow {
  readonly rank: number;
  readonly label: string;
  readonly topPx: number;
  /** By begin; a wait inside a step comes after it. */
  readonly slices: readonly PlacedSlice[];
}

export interface TracePhase {
  readonly label: string;
  readonly startMs: number;
  readonly endMs: number;
}

export interface RankLayout {
  readonly trace: RankTrace;
  readonly topPx: number;
  readonly phases: readonly TracePhase[];
  readonly liveTopPx: number;
  readonly live: RankTrace['live'];
  readonly mostLiveBytes: number;
}

export interface TraceLayout {
  readonly ranks: readonly RankLayout[];
  readonly rows: readonly TraceRow[];
  readonly totalMs: number;
  readonly heightPx: number;
}

/** Places what the ranks took down of one step. */
export function layoutTrace(traces: readonly RankTrace[]): TraceLayout {
  const zeroMs = Math.min(...traces.map(({ startMs }) => startMs));
  const rows: TraceRow[] = [];
  const ranks: RankLayout[] = [];
  let topPx = 0;
  let totalMs = 0;
  for (const trace of traces) {
    const shiftMs = trace.startMs - zeroMs;
    const rankTopPx = topPx;
    topPx += TITLE_PX;
    for (const lane of LANES) {
      const placed = slicesOf(trace, lane).map((slice): PlacedSlice => {
        const step = trace.steps[slice.step];
        const inside = slice.kind === 'wait' && slice.startMs >= step.startMs && slice.endMs <= step.endMs;
        return { ...slice, startMs: slice.startMs + shiftMs, endMs: slice.endMs + shiftMs, inside };
      });
      placed.sort((a, b) => a.startMs - b.startMs || Number(a.inside) - Number(b.inside));
      const count = Math.max(1, ...placed.map(({ row }) => row + 1));
      for (let row = 0; row < count; row++) {
        const slices = placed.filter((slice) => slice.row === row);
        rows.push({ rank: trace.rank, label: row === 0 ? lane : '', topPx, slices });
        topPx += ROW_PX + ROW_GAP_PX;
      }
      totalMs = Math.max(totalMs, ...placed.map(({ endMs }) => endMs));
    }
    const live = trace.live.map(({ atMs, byCategory }) => ({ atMs: atMs + shiftMs, byCategory }));
    const mostLiveBytes = Math.max(...live.map(({ byCategory }) => sum(byCategory)));
    const liveTopPx = topPx + ROW_GAP_PX;
    ranks.push({ trace, topPx: rankTopPx, phases: phasesOf(trace, shiftMs), liveTopPx, live, mostLiveBytes });
    topPx = liveTopPx + LIVE_PX + RANK_GAP_PX;
  }
  return { ranks, rows, totalMs, heightPx: topPx - RANK_GAP_PX + AXIS_PX };
}

/** Neighbours of the compute lane of one phase. */
function phasesOf({ steps }: RankTrace, shiftMs: number): TracePhase[] {
  const phases: { label: string; startMs: number; endMs: number }[] = [];
  for (const { lane, kind, phase, startMs, endMs } of steps) {
    if (lane !== 'compute' || kind === 'free') continue;
    const last = phases.at(-1);
    if (last?.label === phase) last.endMs = endMs + shiftMs;
    else phases.push({ label: phase, startMs: startMs + shiftMs, endMs: endMs + shiftMs });
  }
  return phases;
}

/** A slice by its row and its place there. */
export interface SlicePlace {
  readonly row: number;
  readonly index: number;
}

/** The row that a height is of, and of a moment its slice: the innermost there, or one at most `withinMs` away. */
export function sliceAt({ rows }: TraceLayout, yPx: number, atMs: number, withinMs: number): SlicePlace | null {
  const row = rows.findIndex(({ topPx }) => yPx >= topPx - 1 && yPx < topPx + ROW_PX + 2);
  if (row < 0) return null;
  let best = -1;
  let bestMs = withinMs;
  for (const [index, { startMs, endMs }] of rows[row].slices.entries()) {
    const awayMs = Math.max(startMs - atMs, atMs - endMs, 0);
    // Of two that are as near, the later begins later: it is the inner one.
    if (awayMs <= bestMs) [best, bestMs] = [index, awayMs];
  }
  return best < 0 ? null : { row, index: best };
}

/** Where a key leads from a slice, or from none to the first; null for keys that lead nowhere. */
export function moveByKey(layout: TraceLayout, from: SlicePlace | null, key: string): SlicePlace | null {
  if (!['ArrowRight', 'ArrowLeft', 'ArrowDown', 'ArrowUp', 'Home', 'End'].includes(key)) return null;
  if (!from) {
    const row = layout.rows.findIndex(({ slices }) => slices.length > 0);
    return row < 0 ? null : { row, index: 0 };
  }
  if (key === 'ArrowDown') return moveToRow(layout, from, 1);
  if (key === 'ArrowUp') return moveToRow(layout, from, -1);
  const last = layout.rows[from.row].slices.length - 1;
  const index = { ArrowRight: from.index + 1, ArrowLeft: from.index - 1, Home: 0, End: last }[key] ?? from.index;
  return { row: from.row, index: Math.min(last, Math.max(0, index)) };
}

/** The slice of another row that is nearest in time; rows without slices are passed over. */
function moveToRow({ rows }: TraceLayout, from: SlicePlace, by: 1 | -1): SlicePlace {
  const { startMs } = rows[from.row].slices[from.index];
  for (let row = from.row + by; row >= 0 && row < rows.length; row += by) {
    const { slices } = rows[row];
    if (slices.length === 0) continue;
    const awayMs = (slice: PlacedSlice) => Math.max(slice.startMs - startMs, startMs - slice.endMs, 0);
    return { row, index: slices.reduce((best, slice, i) => (awayMs(slice) < awayMs(slices[best]) ? i : best), 0) };
  }
  return from;
}

/** Live bytes of a rank at a moment. */
export function liveAt({ live }: RankLayout, atMs: number): readonly number[] {
  return (live.findLast((point) => point.atMs <= atMs) ?? live[0]).byCategory;
}

export interface Share {
  readonly label: string;
  readonly ms: number;
  readonly times: number;
}

/** What a rank's compute lane did and waited for, the longest first. */
export function sharesOf(trace: RankTrace): { compute: Share[]; waits: Share[]; busyMs: number; waitMs: number } {
  const compute = new Map<string, Share>();
  const waits = new Map<string, Share>();
  const add = (to: Map<string, Share>, label: string, ms: number) => {
    const before = to.get(label);
    to.set(label, { label, ms: (before?.ms ?? 0) + ms, times: (before?.times ?? 0) + 1 });
  };
  for (const { lane, kind, label, startMs, endMs } of trace.steps)
    if (lane === 'compute' && kind !== 'free') add(compute, label, endMs - startMs);
  for (const { step, for: cause, startMs, endMs } of trace.waits)
    if (trace.steps[step].lane === 'compute') add(waits, causeWords(trace, cause), endMs - startMs);
  const longest = (shares: Map<string, Share>) => [...shares.values()].sort((a, b) => b.ms - a.ms);
  const total = (shares: Map<string, Share>) => sum([...shares.values()].map(({ ms }) => ms));
  return { compute: longest(compute), waits: longest(waits), busyMs: total(compute), waitMs: total(waits) };
}

/** What a wait was for, of whatever unit: "all-gather forward (comm)". */
function causeWords({ steps }: RankTrace, cause: string): string {
  const id = /^step (\d+),/.exec(cause)?.[1];
  if (id === undefined) return cause;
  const { label, unit, lane } = steps[Number(id)];
  return `${label.replace(unit, '').replaceAll(/ +/g, ' ').trim()} (${lane})`;
}

/** Round moments across a window, at most `most` of them. */
export function ticksOf(fromMs: number, toMs: number, most: number): number[] {
  const rough = (toMs - fromMs) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const stride = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough) ?? rough;
  const ticks: number[] = [];
  for (let i = Math.ceil(fromMs / stride); i * stride <= toMs; i++) ticks.push(i * stride);
  return ticks;
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
