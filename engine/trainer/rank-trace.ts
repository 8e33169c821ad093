import { z } from 'zod';
import { emptyCategories, liveBytes, sumCategories } from '../schedule/memory.ts';
import { CATEGORIES, type Schedule } from '../schedule/schedule.ts';
import type { Span, StepTimes } from '../schedule/step-trace.ts';

/** What one rank took down of one step of training, as it is stored in the run's folder. Times are from `startMs` on. */
export const RankTrace = z.strictObject({
  rank: z.int(),
  world: z.int(),
  /** Step of training. */
  step: z.int(),
  /** Milliseconds on the machine's monotonic clock, the same for all its processes. */
  startMs: z.number(),
  /** Who kept the time of the compute lane. Other lanes are always the host's. */
  computeClock: z.discriminatedUnion('kind', [
    z.strictObject({ kind: z.literal('device'), alignedWithinMs: z.number() }),
    z.strictObject({ kind: z.literal('host') }),
  ]),
  /** Of a run whose rows are joined by a slower link than the machine's. */
  simulatedLinkGBps: z.number().optional(),
  /** Every step of the schedule once, in listed order. */
  steps: z.array(
    z.strictObject({
      label: z.string(),
      kind: z.string(),
      lane: z.enum(['compute', 'comm', 'host']),
      unit: z.string(),
      phase: z.string(),
      startMs: z.number(),
      endMs: z.number(),
      /** As planned, in listed order. */
      liveBytes: z.int(),
    }),
  ),
  /** `for`: what was waited for, in words. */
  waits: z.array(z.strictObject({ step: z.int(), for: z.string(), startMs: z.number(), endMs: z.number() })),
  /** Live bytes as they were: from the begin of the step that creates a tensor to the end of the one that frees it. */
  live: z.array(z.strictObject({ atMs: z.number(), byCategory: z.array(z.int()) })),
});
export type RankTrace = z.infer<typeof RankTrace>;

/**
 * The trace of a rank's step of training. `clockOffsetMs` is added to this process's clock to have the machine's.
 */
export function rankTraceOf(
  schedule: Schedule,
  { clock, spans, waits }: StepTimes,
  step: number,
  clockOffsetMs: number,
): RankTrace {
  const originMs = Math.min(...[...spans, ...waits].map(({ startMs }) => startMs));
  const relative = ({ startMs, endMs }: Span): Span => ({
    startMs: rounded(startMs - originMs),
    endMs: rounded(endMs - originMs),
  });
  const planned = liveBytes(schedule).map(sumCategories);
  const steps = schedule.steps.map(({ id, label, kind, lane, unit, phase }) => ({
    label,
    kind,
    lane,
    unit,
    phase,
    ...relative(spans[id]),
    liveBytes: planned[id],
  }));
  const nameOf = (cause: number | string) => {
    if (typeof cause === 'string') return cause;
    const { label, unit, lane } = schedule.steps[cause];
    return `step ${cause}, ${label}${label.includes(unit) ? '' : ` of ${unit}`} (${lane})`;
  };
  const link = simulatedLinkOf(schedule);
  return {
    rank: schedule.rank,
    world: schedule.world,
    step,
    startMs: originMs + clockOffsetMs,
    computeClock: clock,
    ...(link === null ? {} : { simulatedLinkGBps: link }),
    steps,
    waits: waits.map((wait) => ({ step: wait.step, for: nameOf(wait.cause), ...relative(wait) })),
    live: liveOverTime(schedule, steps),
  };
}

function simulatedLinkOf({ steps }: Schedule): number | null {
  const links = steps.flatMap(({ action }) => (action.type === 'collect' && action.linkGBps ? [action.linkGBps] : []));
  return links[0] ?? null;
}

/** Bytes by category, in the order of CATEGORIES, at each moment at which they change. */
function liveOverTime({ tensors, steps }: Schedule, spans: readonly Span[]): RankTrace['live'] {
  const changes: { atMs: number; id: number; ids: readonly number[]; sign: 1 | -1 }[] = [];
  for (const { id, creates, frees, action } of steps) {
    const { startMs, endMs } = spans[id];
    changes.push({ atMs: startMs, id, ids: creates, sign: 1 });
    // As the plan counts: what a `free` frees is gone at it, what another step frees it still touches.
    changes.push({ atMs: action.type === 'free' ? startMs : endMs, id, ids: frees, sign: -1 });
  }
  // The sort is stable: a step creates before it frees.
  changes.sort((a, b) => a.atMs - b.atMs || a.id - b.id);
  const now = emptyCategories();
  for (const t of tensors) if (t.state && t.space !== 'host') now[t.category] += t.bytes;
  const live: { atMs: number; byCategory: number[] }[] = [];
  const take = (atMs: number) => {
    if (live.at(-1)?.atMs === atMs) live.pop();
    live.push({ atMs, byCategory: CATEGORIES.map((category) => now[category]) });
  };
  take(0);
  for (const { atMs, ids, sign } of changes) {
    if (ids.length === 0) continue;
    for (const id of ids) now[tensors[id].category] += sign * tensors[id].bytes;
    take(atMs);
  }
  return live;
}

/** To the nanosecond. */
function rounded(ms: number): number {
  return Math.round(ms * 1e6) / 1e6;
}
