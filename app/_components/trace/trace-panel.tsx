'use client';

import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { clockWords } from '../../../engine/trainer/chrome-trace.ts';
import type { RankTrace } from '../../../engine/trainer/rank-trace.ts';
import type { Run } from '../../../server/contract.ts';
import { getTrace, listTraces, traceDownloadUrl, traceRun } from '../../_lib/api.ts';
import { CATEGORY_LOOKS } from '../../_lib/categories.ts';
import { formatCount, formatMs } from '../../_lib/format.ts';
import { stepName } from '../../_lib/step-words.ts';
import { type Share, STEP_LOOKS, sharesOf } from '../../_lib/trace-layout.ts';
import { ChartNoteText } from '../charts/chart-note.tsx';
import { isActive } from '../runs/state-chip.tsx';
import { Button, buttonClass } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';
import { Dot, Segmented } from '../ui/segmented.tsx';
import { TraceChart } from './trace-chart.tsx';

/** How often it is looked for a trace: after one was asked for, and otherwise while the run goes on. */
const ASKED_MS = 500;
const ACTIVE_MS = 5000;
/** More ranks than this are looked at one by one. */
const MAX_TOGETHER = 4;
const MAX_SHARES = 6;

/** When each step of the schedule ran in one step of training: asking for it, drawing it, downloading it. */
export function TracePanel({ run }: { run: Run }) {
  const active = isActive(run.state);
  const [countWhenAsked, setCountWhenAsked] = useState<number | null>(null);
  const [chosen, setChosen] = useState<number | null>(null);
  const { data } = useQuery({
    queryKey: ['traces', run.id, active],
    queryFn: ({ signal }) => listTraces(run.id, signal),
    placeholderData: (before) => before,
    refetchInterval: active ? (countWhenAsked === null ? ACTIVE_MS : ASKED_MS) : false,
  });
  const steps = data?.steps ?? [];
  const isComing = active && countWhenAsked !== null && steps.length <= countWhenAsked;
  const ask = useMutation({
    mutationFn: () => traceRun(run.id),
    onMutate: () => {
      setCountWhenAsked(steps.length);
      setChosen(null);
    },
    onError: () => setCountWhenAsked(null),
  });
  const step = chosen !== null && steps.includes(chosen) ? chosen : steps.at(-1);
  if (run.state === 'queued') return null;
  return (
    <section className="panel min-w-0 p-4 sm:p-5" aria-label="Trace of a step">
      <div className="flex flex-wrap items-center gap-2">
        <div className="mr-auto min-w-0">
          <h2 className="font-semibold">{step === undefined ? 'Trace of a step' : `Trace of ${stepName(step)}`}</h2>
          <ChartNoteText />
        </div>
        {steps.length > 1 ? (
          <Segmented
            label="Step to show"
            segments={steps.slice(-5).map((value) => ({ value, label: stepName(value) }))}
            value={step ?? steps[0]}
            onChange={setChosen}
          />
        ) : null}
        {run.state === 'running' || run.state === 'starting' ? (
          <Button onClick={() => ask.mutate()} disabled={isComing} title="The next step is timed; training goes on">
            <Icon name="bolt" className="size-3.5" />
            {isComing ? 'Tracing…' : 'Trace a step'}
          </Button>
        ) : null}
        {step === undefined ? null : (
          <a href={traceDownloadUrl(run.id, step)} download className={buttonClass('quiet')}>
            <Icon name="download" className="size-3.5" />
            Chrome trace
          </a>
        )}
      </div>
      {ask.error ? (
        <div className="mt-3">
          <Notice tone="bad" title="No step was traced">
            {ask.error.message}
          </Notice>
        </div>
      ) : null}
      {step === undefined ? (
        <p className="mt-1 text-muted">
          {active
            ? 'When each step of the schedule runs, lane by lane on every rank, and what it waits for.'
            : 'No step of this run was traced. A run that trains can be asked to; on the command line it is train --trace.'}
        </p>
      ) : (
        <Traced key={step} runId={run.id} step={step} />
      )}
    </section>
  );
}

function Traced({ runId, step }: { runId: string; step: number }) {
  const { data, error } = useQuery({
    queryKey: ['trace', runId, step],
    queryFn: ({ signal }) => getTrace(runId, step, signal),
    staleTime: Number.POSITIVE_INFINITY,
  });
  const [rank, setRank] = useState<number | 'all'>('all');
  if (error)
    return (
      <div className="mt-3">
        <Notice tone="bad" title="The trace cannot be shown">
          {error.message}
        </Notice>
      </div>
    );
  if (!data) return <p className="mt-2 py-16 text-center text-faint">Loading the trace…</p>;
  const { ranks } = data;
  const together = ranks.length <= MAX_TOGETHER;
  const shown = rank === 'all' ? (together ? ranks : ranks.slice(0, 1)) : ranks.filter((one) => one.rank === rank);
  return (
    <div className="mt-1 space-y-3">
      <p className="text-xs text-faint">{clocksOf(ranks)}</p>
      <div className="flex flex-wrap items-center gap-x-4 gap-y-2">
        {ranks.length > 1 ? (
          <Segmented<number | 'all'>
            label="Ranks of the trace"
            segments={[
              ...(together ? [{ value: 'all' as const, label: 'All ranks' }] : []),
              ...ranks.map((one) => ({ value: one.rank, label: `Rank ${one.rank}` })),
            ]}
            value={rank === 'all' && !together ? 0 : rank}
            onChange={setRank}
          />
        ) : null}
        <Legend shown={shown} />
      </div>
      <TraceChart ranks={shown} step={step} key={String(rank)} />
      <div className="grid gap-x-8 gap-y-4 sm:grid-cols-2">
        <Shares trace={shown[0]} />
      </div>
    </div>
  );
}

/** Who kept the time; of several ranks' clocks, how far off the worst may be. */
function clocksOf(ranks: readonly RankTrace[]): string {
  const worst = ranks
    .map(({ computeClock }) => computeClock)
    .reduce((a, b) => (a.kind === 'host' || (b.kind === 'device' && b.alignedWithinMs <= a.alignedWithinMs) ? a : b));
  return `Compute by the ${clockWords(worst)}. Comm and host by the host clock.`;
}

function Legend({ shown }: { shown: readonly RankTrace[] }) {
  const kinds = new Set(shown.flatMap(({ steps }) => steps.map(({ kind }) => kind)));
  const held = new Set(
    CATEGORY_LOOKS.filter((_, i) => shown.some(({ live }) => live.some(({ byCategory }) => byCategory[i] > 0))).map(
      ({ category }) => category,
    ),
  );
  return (
    <ul className="flex flex-wrap gap-x-3.5 gap-y-1 text-xs text-muted" aria-label="Colours of the lanes">
      {STEP_LOOKS.filter((one) => one.kinds.some((kind) => kinds.has(kind))).map(({ label, colour }) => (
        <li key={label} className="flex items-center gap-1.5 whitespace-nowrap">
          <Dot colour={colour} square />
          {label}
        </li>
      ))}
      <li className="flex items-center gap-1.5 whitespace-nowrap">
        <svg viewBox="0 0 8 8" className="size-2 shrink-0" aria-hidden="true">
          <path d="M0 4 4 0M0 8 8 0M4 8 8 4" stroke="var(--faint)" strokeWidth="1" />
        </svg>
        wait
      </li>
      <li className="text-faint">live bytes:</li>
      {CATEGORY_LOOKS.filter(({ category }) => held.has(category)).map(({ category, colour }) => (
        <li key={category} className="flex items-center gap-1.5 whitespace-nowrap text-faint">
          <Dot colour={colour} square />
          {category}
        </li>
      ))}
    </ul>
  );
}

/** Where the time of a rank's compute lane went. */
function Shares({ trace }: { trace: RankTrace }) {
  const { compute, waits, busyMs, waitMs } = sharesOf(trace);
  return (
    <>
      <ShareList title={`Compute of rank ${trace.rank}: ${formatMs(busyMs)}`} shares={compute} ofMs={busyMs} />
      <ShareList
        title={`Its waits: ${formatMs(waitMs)}`}
        shares={waits}
        ofMs={busyMs + waitMs}
        none="It waited for nothing."
        waits
      />
    </>
  );
}

function ShareList(props: { title: string; shares: readonly Share[]; ofMs: number; none?: string; waits?: boolean }) {
  const { title, shares, ofMs, waits = false } = props;
  return (
    <div className="min-w-0">
      <h3 className="caps mb-1">{title}</h3>
      {shares.length === 0 ? <p className="text-xs text-muted">{props.none}</p> : null}
      <ol className="space-y-0.5 text-xs">
        {shares.slice(0, MAX_SHARES).map(({ label, ms, times }) => (
          <li key={label} className="relative flex gap-2 rounded px-1.5 py-0.5">
            <svg className="absolute inset-0 size-full" aria-hidden="true">
              <rect
                width={`${ofMs ? (ms / ofMs) * 100 : 0}%`}
                height="100%"
                rx="4"
                fill={waits ? 'var(--line-strong)' : 'var(--cat-activations)'}
                opacity={waits ? 0.5 : 0.22}
              />
            </svg>
            <span className="relative min-w-0 flex-1 truncate" title={label}>
              {label}
              {times > 1 ? <span className="text-faint"> ×{formatCount(times)}</span> : null}
            </span>
            <span className="relative shrink-0 text-muted">{formatMs(ms)}</span>
          </li>
        ))}
      </ol>
    </div>
  );
}
