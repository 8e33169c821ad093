'use client';

import { useQuery } from '@tanstack/react-query';
import Link from 'next/link';
import { type ReactNode, useMemo } from 'react';
import { CATEGORIES } from '../../../engine/schedule/schedule.ts';
import type { Comparison } from '../../../server/contract.ts';
import { ApiError, compareRuns } from '../../_lib/api.ts';
import { CATEGORY_LOOKS } from '../../_lib/categories.ts';
import { alignColumn, scaleAfterFirst, unionOfSteps } from '../../_lib/chart-data.ts';
import { type ComparedRun, comparisonCsv, differingFields } from '../../_lib/comparison-table.ts';
import {
  formatCount,
  formatExactBytes,
  formatLoss,
  formatMB,
  formatMs,
  formatRatio,
  formatSeconds,
  NONE,
} from '../../_lib/format.ts';
import { useRunColours } from '../../_lib/run-colours.ts';
import type { RankColumns } from '../../_lib/run-log.ts';
import { simulatedLinkNote } from '../../_lib/simulated-link.ts';
import { type FollowedRun, useRunLogs } from '../../_lib/use-run-logs.ts';
import { Chart, type ChartSeries } from '../charts/chart.tsx';
import { ChartNote, ChartNoteText } from '../charts/chart-note.tsx';
import { StackBar } from '../charts/stack-bar.tsx';
import { summaryOf } from '../run/run-charts.tsx';
import { Progress } from '../runs/progress.tsx';
import { isActive, StateChip } from '../runs/state-chip.tsx';
import { Button, ButtonLink } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';
import { ScrollRegion } from '../ui/scroll-region.tsx';
import { Dot } from '../ui/segmented.tsx';

/** Runs side by side: the guides' table and bars, losses on one axis, memory by category, what differs. Live while they run. */
export function ComparePage({ ids }: { ids: readonly string[] }) {
  const { data, error, isPending } = useQuery({
    queryKey: ['compare', ids],
    queryFn: ({ signal }) => compareRuns(ids, signal),
    enabled: ids.length > 0,
    refetchInterval: ({ state }) => {
      if (state.error instanceof ApiError && state.error.status === 404) return false;
      return !state.data || state.data.runs.some(({ run }) => isActive(run.state)) ? 1000 : false;
    },
  });
  const followed = useRunLogs(data ? ids : []);
  const colourOf = useRunColours(ids);
  if (ids.length < 2)
    return (
      <Notice
        tone="info"
        page
        title="Tick two or more runs to compare them"
        action={<ButtonLink href="/runs">All runs</ButtonLink>}
      >
        A comparison is a link: it can be kept and shared with who uses this studio.
      </Notice>
    );
  if (!data) {
    if (isPending) return <p className="py-20 text-center text-faint">Loading the comparison…</p>;
    return (
      <Notice
        tone="bad"
        page
        title={
          error instanceof ApiError && error.status === 404
            ? 'One of these runs is gone'
            : 'The comparison cannot be shown'
        }
        action={<ButtonLink href="/runs">All runs</ButtonLink>}
      >
        {error?.message}
      </Notice>
    );
  }
  return <Compared comparison={data} followed={followed} colourOf={colourOf} problem={error?.message ?? null} />;
}

function Compared(props: {
  comparison: Comparison;
  followed: readonly FollowedRun[];
  colourOf: (id: string) => string;
  problem: string | null;
}) {
  const { comparison, followed, colourOf } = props;
  const { runs } = comparison;
  const active = runs.filter(({ run }) => isActive(run.state)).length;
  const labels = useMemo(() => labelsOf(runs), [runs]);
  const linkNote = simulatedLinkNote(runs.map(({ config }) => config));
  return (
    <ChartNote value={linkNote}>
      <div className="space-y-4">
        <div className="flex flex-wrap items-center gap-x-3 gap-y-2">
          <h1 className="text-lg font-semibold tracking-tight">Comparison of {runs.length} runs</h1>
          <p className="text-muted" aria-live="polite">
            {active ? `${active} still going` : 'all ended'}
          </p>
          <ChartNoteText />
          <Button className="ml-auto" onClick={() => download('comparison.csv', comparisonCsv(comparison))}>
            <Icon name="download" className="size-3.5" />
            Export CSV
          </Button>
        </div>
        {props.problem ? (
          <Notice tone="warn" title="These may be out of date">
            {props.problem}
          </Notice>
        ) : null}
        <Headline runs={runs} labels={labels} />
        <GuideTable runs={runs} colourOf={colourOf} />
        <div className="grid gap-4 lg:grid-cols-2">
          <Bars
            title="Memory, reserved peak"
            unit="MB"
            runs={runs}
            labels={labels}
            colourOf={colourOf}
            valueOf={({ peakBytes }) => peakBytes}
            format={formatMB}
          />
          <Bars
            title="Iteration time, median"
            about={saidSteps(comparison)}
            unit="s"
            runs={runs}
            labels={labels}
            colourOf={colourOf}
            valueOf={({ iterationMs }) => iterationMs}
            format={formatSeconds}
          />
        </div>
        <div className="grid gap-4 lg:grid-cols-2">
          <Overlay
            title="Loss, mean over ranks"
            runs={runs}
            labels={labels}
            followed={followed}
            colourOf={colourOf}
            pick="lossMean"
            format={formatLoss}
          />
          <Overlay
            title="Iteration time, rank 0"
            runs={runs}
            labels={labels}
            followed={followed}
            colourOf={colourOf}
            pick="iterationMs"
            format={formatMs}
          />
        </div>
        <LiveByCategory runs={runs} labels={labels} colourOf={colourOf} />
        <Differences comparison={comparison} colourOf={colourOf} />
      </div>
    </ChartNote>
  );
}

/** Over which steps the iteration times are taken. */
function saidSteps({ timedSteps, runs }: Comparison): string | null {
  if (runs.every(({ iterationMs }) => iterationMs === null)) return null;
  if (timedSteps === null) return 'No step is common to all: each over its own steps, the first apart.';
  const { first, last, count } = timedSteps;
  if (count === 1) return `Step ${formatCount(first)} alone: no other is common to all, first steps apart.`;
  const which = `steps ${formatCount(first)} to ${formatCount(last)}`;
  return `Over ${which}, which all have.`;
}

/** A short name for each run: its strategy, and its own name where that does not tell it from the others. */
function labelsOf(runs: readonly ComparedRun[]): string[] {
  const strategies = new Set(runs.map(({ run }) => run.strategy));
  return runs.map(({ run }) => (strategies.size === runs.length ? run.strategy : run.name));
}

/** The answer in a sentence, once there are two numbers to compare. */
function Headline({ runs, labels }: { runs: readonly ComparedRun[]; labels: readonly string[] }) {
  const measured = runs.flatMap(({ peakBytes, iterationMs, lossMeans, lossStride }, i) =>
    peakBytes !== null && iterationMs !== null
      ? [{ label: labels[i], peakBytes, iterationMs, lossMeans, lossStride }]
      : [],
  );
  if (measured.length < 2) return null;
  const [first, ...rest] = measured;
  const least = rest.reduce((a, b) => (b.peakBytes < a.peakBytes ? b : a));
  const said = (ratio: number) => {
    if (Math.abs(ratio - 1) < 0.005) return 'as much';
    return ratio < 1 ? `${Math.round((1 - ratio) * 100)} % less` : `${Math.round((ratio - 1) * 100)} % more`;
  };
  const sameLosses = measured.every(
    ({ lossMeans, lossStride }) =>
      lossStride === first.lossStride &&
      lossMeans.every((loss, i) => i >= first.lossMeans.length || loss === first.lossMeans[i]),
  );
  // Until all have ended they are compared over the steps that they have in common so far.
  const isFinal = runs.every(({ run }) => run.endedAt !== null);
  const memory = said(least.peakBytes / first.peakBytes);
  const time = said(least.iterationMs / first.iterationMs);
  return (
    <p className="text-base text-muted" data-testid="headline">
      {isFinal ? '' : 'So far, '}
      <Strong>{least.label}</Strong> holds <Strong>{memory}</Strong> memory {memory === 'as much' ? 'as' : 'than'}{' '}
      <Strong>{first.label}</Strong> and takes <Strong>{time}</Strong> time for a step
      {sameLosses ? '; their losses are equal to the last bit.' : '.'}
    </p>
  );
}

function Strong({ children }: { children: ReactNode }) {
  return <b className="font-semibold text-ink">{children}</b>;
}

const GUIDE_COLUMNS = [
  { head: 'Strategy', right: false },
  { head: 'Memory (MB)', right: true },
  { head: 'to first', right: true },
  { head: 'Iteration time (s)', right: true },
  { head: 'to first', right: true },
  { head: 'Loss', right: true },
  { head: 'State', right: false },
  { head: 'Run', right: false },
] as const;

/** The table of the FSDP guides: what a phone shows first are the two numbers that decide. */
function GuideTable({ runs, colourOf }: { runs: readonly ComparedRun[]; colourOf: (id: string) => string }) {
  const first = runs[0];
  const cell = 'px-2 py-2 sm:px-3 whitespace-nowrap';
  const number = `${cell} text-right`;
  return (
    <ScrollRegion label="Memory and time by strategy" className="panel">
      <table className="w-full" aria-label="Comparison">
        <thead className="border-b border-line">
          <tr className="caps">
            {GUIDE_COLUMNS.map(({ head, right }, i) => (
              <th
                // biome-ignore lint/suspicious/noArrayIndexKey: two columns have the same head.
                key={i}
                scope="col"
                className={`px-2 py-2 font-medium first:pl-4 last:pr-4 sm:px-3 ${right ? 'text-right' : 'text-left'}`}
              >
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {runs.map(({ run, peakBytes, iterationMs, lossMeans }) => (
            <tr key={run.id} className="border-b border-line last:border-0">
              <th scope="row" className={`${cell} pl-4 text-left font-medium`}>
                <span className="flex items-center gap-2">
                  <Dot colour={colourOf(run.id)} />
                  <span className="font-mono text-xs">{run.strategy}</span>
                  <span className="font-normal text-faint">× {run.devices}</span>
                </span>
              </th>
              <td
                className={`${number} font-semibold`}
                title={peakBytes === null ? undefined : formatExactBytes(peakBytes)}
                data-bytes={peakBytes ?? undefined}
              >
                {formatMB(peakBytes)}
              </td>
              <td className={`${number} text-muted`}>{formatRatio(peakBytes, first.peakBytes)}</td>
              <td className={`${number} font-semibold`} data-ms={iterationMs ?? undefined}>
                {formatSeconds(iterationMs)}
              </td>
              <td className={`${number} text-muted`}>{formatRatio(iterationMs, first.iterationMs)}</td>
              <td className={number}>{formatLoss(run.lossMean ?? lossMeans.at(-1))}</td>
              <td className={`${cell} w-44 min-w-36`}>
                {run.state === 'running' || run.state === 'stopping' ? (
                  <Progress label={`Progress of ${run.name}`} done={run.stepsDone} of={run.steps} />
                ) : (
                  <span title={run.reason}>
                    <StateChip state={run.state} />
                  </span>
                )}
              </td>
              <td className={`${cell} pr-4`}>
                <Link href={`/runs/${encodeURIComponent(run.id)}`} className="text-accent hover:underline">
                  {run.name}
                </Link>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </ScrollRegion>
  );
}

function Bars(props: {
  title: string;
  unit: string;
  about?: string | null;
  runs: readonly ComparedRun[];
  labels: readonly string[];
  colourOf: (id: string) => string;
  valueOf: (run: ComparedRun) => number | null;
  format: (value: number | null) => string;
}) {
  const most = Math.max(0, ...props.runs.map((run) => props.valueOf(run) ?? 0));
  return (
    <section className="panel p-4 sm:p-5" aria-label={props.title}>
      <h2 className="font-semibold">
        {props.title} <span className="font-normal text-faint">({props.unit})</span> <ChartNoteText />
      </h2>
      {props.about ? <p className="mt-0.5 text-xs text-faint">{props.about}</p> : null}
      <ul className="mt-3 space-y-2.5">
        {props.runs.map((run, i) => {
          const value = props.valueOf(run);
          return (
            <li key={run.run.id}>
              <div className="mb-1 flex justify-between gap-2 text-xs">
                <span className="truncate font-mono text-muted">{props.labels[i]}</span>
                <span className="font-semibold whitespace-nowrap">
                  {value === null ? NONE : `${props.format(value)} ${props.unit}`}
                </span>
              </div>
              <svg
                role="img"
                aria-label={`${props.labels[i]}: ${value === null ? 'not known yet' : `${props.format(value)} ${props.unit}`}`}
                className="block h-5 w-full overflow-hidden rounded-[5px]"
              >
                <rect width="100%" height="100%" fill="var(--sunken)" />
                <rect
                  width={`${most && value ? (value / most) * 100 : 0}%`}
                  height="100%"
                  rx="5"
                  fill={props.colourOf(run.run.id)}
                  className="transition-[width] duration-500"
                />
              </svg>
            </li>
          );
        })}
      </ul>
    </section>
  );
}

function Overlay(props: {
  title: string;
  runs: readonly ComparedRun[];
  labels: readonly string[];
  followed: readonly FollowedRun[];
  colourOf: (id: string) => string;
  pick: 'lossMean' | 'iterationMs';
  format: (value: number) => string;
}) {
  const { runs, labels, followed, colourOf, pick } = props;
  const colours = runs.map(({ run }) => colourOf(run.id)).join('|');
  const { x, series, maxY } = useMemo(() => {
    const columns = runs.map(({ run }) => {
      const ranks = followed.find(({ id }) => id === run.id)?.follower.log.ranks;
      return ranks?.get(0) ?? null;
    });
    const steps = unionOfSteps(columns.flatMap((one) => (one ? [one] : [])));
    const lines = columns.flatMap((one, i): ChartSeries[] =>
      one
        ? [
            {
              label: labels[i],
              colour: colours.split('|')[i],
              kind: 'line',
              // Equal curves cover each other: later ones are dashed, so that all are seen.
              widthPx: covers(one, columns.slice(0, i), pick) ? 2 : 2.5,
              dash: covers(one, columns.slice(0, i), pick) ? [6, 3 + 3 * i] : undefined,
              values: alignColumn(steps, one.step, one[pick]),
            },
          ]
        : [],
    );
    const scale =
      pick === 'iterationMs' ? scaleAfterFirst(columns.flatMap((one) => (one ? [one.iterationMs] : []))) : null;
    return { x: lines.length ? steps : [], series: lines, maxY: scale?.maxY };
  }, [runs, labels, followed, pick, colours]);
  return (
    <section className="panel min-w-0 p-4 sm:p-5" aria-label={props.title}>
      <Chart
        title={props.title}
        summary={summaryOf(props.title, x, series, props.format)}
        x={x}
        series={series}
        format={props.format}
        formatX={(i) => (x[i] === undefined ? '' : `step ${formatCount(x[i])}`)}
        empty="Waits for the first step"
        fromZero={pick === 'iterationMs'}
        maxY={maxY}
      />
    </section>
  );
}

/** Whether a curve lies on one of those before it, as far as both go. */
function covers(one: RankColumns, before: readonly (RankColumns | null)[], pick: 'lossMean' | 'iterationMs'): boolean {
  return before.some((other) =>
    other?.[pick].every((value, i) => i >= one[pick].length || Object.is(value, one[pick][i])),
  );
}

function LiveByCategory({
  runs,
  labels,
  colourOf,
}: {
  runs: readonly ComparedRun[];
  labels: readonly string[];
  colourOf: (id: string) => string;
}) {
  const most = Math.max(0, ...runs.map(({ peakBytes, liveBytes }) => Math.max(peakBytes ?? 0, liveBytes ?? 0)));
  return (
    <section className="panel p-4 sm:p-5" aria-label="Live memory by category">
      <h2 className="font-semibold">
        Live memory by category, at the fullest moment{' '}
        <span className="font-normal text-faint">of the fullest rank</span> <ChartNoteText />
      </h2>
      <ul className="mt-3 space-y-2.5">
        {runs.map(({ run, byCategory, liveBytes, peakBytes }, i) => {
          const bytes = CATEGORIES.map((category) => byCategory?.[category] ?? 0);
          return (
            <li key={run.id}>
              <div className="mb-1 flex flex-wrap justify-between gap-x-3 text-xs">
                <span className="flex items-center gap-2 font-mono text-muted">
                  <Dot colour={colourOf(run.id)} />
                  {labels[i]}
                </span>
                <span className="whitespace-nowrap">
                  <span className="font-semibold">{formatMB(liveBytes)} MB</span>{' '}
                  <span className="text-faint">live · {formatMB(peakBytes)} MB reserved</span>
                </span>
              </div>
              <StackBar
                label={`${labels[i]}: ${CATEGORIES.map((c, at) => `${c} ${formatMB(bytes[at])} MB`).join(', ')}`}
                byCategory={bytes}
                reservedBytes={peakBytes}
                ofBytes={most}
                className="h-5"
              />
            </li>
          );
        })}
      </ul>
      <ScrollRegion label="Live memory by category as a table" className="mt-3">
        <table
          className="w-full text-xs"
          style={{ minWidth: `${7 + 6 * runs.length}rem` }}
          aria-label="Live memory by category"
        >
          <thead>
            <tr className="caps">
              <th scope="col" className="py-1 text-left font-medium">
                Category, MB
              </th>
              {runs.map(({ run }, i) => (
                <th key={run.id} scope="col" className="py-1 pl-3 text-right font-mono font-medium">
                  {labels[i]}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {CATEGORY_LOOKS.map(({ category, colour }) => (
              <tr key={category}>
                <th scope="row" className="py-0.5 text-left font-normal">
                  <span className="flex items-center gap-2">
                    <Dot colour={colour} square />
                    {category}
                  </span>
                </th>
                {runs.map(({ run, byCategory }) => (
                  <td
                    key={run.id}
                    className="py-0.5 pl-3 text-right whitespace-nowrap"
                    title={byCategory ? formatExactBytes(byCategory[category]) : undefined}
                  >
                    {formatMB(byCategory?.[category] ?? null)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </ScrollRegion>
    </section>
  );
}

function Differences({ comparison, colourOf }: { comparison: Comparison; colourOf: (id: string) => string }) {
  const fields = differingFields(comparison);
  return (
    <section className="panel p-4 sm:p-5" aria-label="Differing config fields">
      <h2 className="font-semibold">What differs in their configs</h2>
      {fields.length ? (
        <ScrollRegion label="Differing config fields as a table" className="mt-2">
          <table
            className="w-full text-xs"
            style={{ minWidth: `${13 + 11 * comparison.runs.length}rem` }}
            aria-label="Differing config fields"
          >
            <thead>
              <tr className="caps">
                <th scope="col" className="py-1 text-left font-medium">
                  Field
                </th>
                {comparison.runs.map(({ run }) => (
                  <th key={run.id} scope="col" className="py-1 pl-4 text-left font-medium">
                    <span className="flex items-center gap-1.5 whitespace-nowrap">
                      <Dot colour={colourOf(run.id)} />
                      {run.name}
                    </span>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody className="font-mono">
              {fields.map(({ path, values }) => (
                <tr key={path} className="border-t border-line">
                  <th scope="row" className="py-1.5 pr-3 text-left font-normal text-muted">
                    {path}
                  </th>
                  {values.map((value, i) => (
                    <td key={comparison.runs[i].run.id} className="py-1.5 pl-4">
                      <span className={value === NONE ? 'text-faint' : 'rounded bg-warn-soft px-1'}>{value}</span>
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </ScrollRegion>
      ) : (
        <p className="mt-1 text-muted">Nothing but their names.</p>
      )}
    </section>
  );
}

function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: 'text/csv;charset=utf-8' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
