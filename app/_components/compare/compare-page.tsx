'use client';

import { useQuery } from '@tanstack/react-query';
import { useMemo } from 'react';
import { CATEGORIES } from '../../../engine/schedule/schedule.ts';
import type { Comparison } from '../../../server/contract.ts';
import { ApiError, compareRuns } from '../../_lib/api.ts';
import { CATEGORY_LOOKS } from '../../_lib/categories.ts';
import { alignColumn, scaleAfterFirst, unionOfSteps } from '../../_lib/chart-data.ts';
import { type ComparedRun, comparisonCsv } from '../../_lib/comparison-table.ts';
import { formatBytes, formatExactBytes, formatLoss, formatMs, formatMsRange, NONE } from '../../_lib/format.ts';
import { useRunColours } from '../../_lib/run-colours.ts';
import type { RankColumns } from '../../_lib/run-log.ts';
import { simulatedLinkNote } from '../../_lib/simulated-link.ts';
import { stepName, stepRange } from '../../_lib/step-words.ts';
import { whyFullShardHoldsMore } from '../../_lib/strategy-notes.ts';
import { type FollowedRun, useRunLogs } from '../../_lib/use-run-logs.ts';
import { Chart, type ChartSeries } from '../charts/chart.tsx';
import { ChartNote, ChartNoteText } from '../charts/chart-note.tsx';
import { StackBar } from '../charts/stack-bar.tsx';
import { summaryOf } from '../run/run-charts.tsx';
import { isActive } from '../runs/state-chip.tsx';
import { Button, ButtonLink } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';
import { ScrollRegion } from '../ui/scroll-region.tsx';
import { Dot } from '../ui/segmented.tsx';
import { Differences } from './differences.tsx';
import { GuideTable } from './guide-table.tsx';
import { Headline } from './headline.tsx';

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
            runs={runs}
            labels={labels}
            colourOf={colourOf}
            valueOf={({ peakBytes }) => peakBytes}
            format={formatBytes}
          />
          <Bars
            title="Iteration time, median"
            about={saidSteps(comparison)}
            runs={runs}
            labels={labels}
            colourOf={colourOf}
            valueOf={({ iterationMs }) => iterationMs}
            rangeOf={({ iterationSpread: spread }) => spread && [spread.minMs, spread.maxMs]}
            format={formatMs}
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
        <LiveByCategory runs={runs} labels={labels} followed={followed} colourOf={colourOf} />
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
  if (count === 1) return `By ${stepRange(first, last)}: no other is common to all, first steps apart.`;
  return `Over ${stepRange(first, last)}, which all have. The line goes from the quickest to the slowest.`;
}

/** A short name for each run: its strategy, and its own name where that does not tell it from the others. */
function labelsOf(runs: readonly ComparedRun[]): string[] {
  const strategies = new Set(runs.map(({ run }) => run.strategy));
  return runs.map(({ run }) => (strategies.size === runs.length ? run.strategy : run.name));
}

function Bars(props: {
  title: string;
  about?: string | null;
  runs: readonly ComparedRun[];
  labels: readonly string[];
  colourOf: (id: string) => string;
  valueOf: (run: ComparedRun) => number | null;
  /** From where to where the value scatters. */
  rangeOf?: (run: ComparedRun) => readonly [number, number] | null;
  format: (value: number | null) => string;
}) {
  const rangeOf = props.rangeOf ?? (() => null);
  const most = Math.max(0, ...props.runs.map((run) => rangeOf(run)?.[1] ?? props.valueOf(run) ?? 0));
  const percent = (value: number) => `${most ? (value / most) * 100 : 0}%`;
  return (
    <section className="panel min-w-0 p-4 sm:p-5" aria-label={props.title}>
      <h2 className="font-semibold">
        {props.title} <ChartNoteText />
      </h2>
      {props.about ? <p className="mt-0.5 text-xs text-faint">{props.about}</p> : null}
      <ul className="mt-3 space-y-2.5">
        {props.runs.map((run, i) => {
          const value = props.valueOf(run);
          const range = rangeOf(run);
          const said = value === null ? 'not known yet' : props.format(value);
          return (
            <li key={run.run.id}>
              <div className="mb-1 flex justify-between gap-2 text-xs">
                <span className="truncate font-mono text-muted">{props.labels[i]}</span>
                <span className="whitespace-nowrap">
                  {range ? <span className="mr-2 text-faint">{formatMsRange(...range)}</span> : null}
                  <span className="font-semibold">{value === null ? NONE : said}</span>
                </span>
              </div>
              <svg
                role="img"
                aria-label={`${props.labels[i]}: ${said}${range ? `, ${formatMsRange(...range)}` : ''}`}
                className="block h-5 w-full overflow-hidden rounded-[5px]"
              >
                <rect width="100%" height="100%" fill="var(--sunken)" />
                <rect
                  width={percent(value ?? 0)}
                  height="100%"
                  rx="5"
                  fill={props.colourOf(run.run.id)}
                  className="transition-[width] duration-500"
                />
                {range ? (
                  <g stroke="var(--ink)" strokeWidth="1.5" opacity="0.75">
                    <line x1={percent(range[0])} x2={percent(range[1])} y1="50%" y2="50%" />
                    <line x1={percent(range[0])} x2={percent(range[0])} y1="30%" y2="70%" />
                    <line x1={percent(range[1])} x2={percent(range[1])} y1="30%" y2="70%" />
                  </g>
                ) : null}
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
        formatX={(i) => (x[i] === undefined ? '' : stepName(x[i]))}
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

/** The first column stays in sight while a phone scrolls the others. */
const STAYS = 'sticky left-0 bg-panel pr-2';

function LiveByCategory({
  runs,
  labels,
  followed,
  colourOf,
}: {
  runs: readonly ComparedRun[];
  labels: readonly string[];
  followed: readonly FollowedRun[];
  colourOf: (id: string) => string;
}) {
  const most = Math.max(0, ...runs.map(({ peakBytes, liveBytes }) => Math.max(peakBytes ?? 0, liveBytes ?? 0)));
  const whyMore = fullShardNote(runs);
  const hostBytes = runs.map(({ run }) => {
    const ranks = followed.find(({ id }) => id === run.id)?.follower.log.ranks;
    return ranks?.size ? Math.max(...[...ranks.values()].map((rank) => rank.hostBytes)) : null;
  });
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
                  <span className="font-semibold">{formatBytes(liveBytes)}</span>{' '}
                  <span className="text-faint">live · {formatBytes(peakBytes)} reserved</span>
                </span>
              </div>
              <StackBar
                label={`${labels[i]}: ${CATEGORIES.map((c, at) => `${c} ${formatBytes(bytes[at])}`).join(', ')}`}
                byCategory={bytes}
                reservedBytes={peakBytes}
                ofBytes={most}
                className="h-5"
              />
            </li>
          );
        })}
      </ul>
      {whyMore ? <p className="mt-2 text-xs text-faint">{whyMore}</p> : null}
      <ScrollRegion label="Live memory by category as a table" className="mt-3">
        <table
          className="w-full text-xs"
          style={{ minWidth: `${7 + 6 * runs.length}rem` }}
          aria-label="Live memory by category"
        >
          <thead>
            <tr className="caps">
              <th scope="col" className={`${STAYS} py-1 text-left font-medium`}>
                Category
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
                <th scope="row" className={`${STAYS} py-0.5 text-left font-normal`}>
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
                    {formatBytes(byCategory?.[category])}
                  </td>
                ))}
              </tr>
            ))}
            {hostBytes.some((bytes) => bytes) ? (
              <tr
                className="border-t border-line"
                title="Of a rank, beside its device memory: what ranks exchange through, and under CPU offload the parameters, gradients and optimizer state that rest there"
              >
                <th scope="row" className={`${STAYS} py-0.5 text-left font-normal`}>
                  host memory
                </th>
                {runs.map(({ run }, i) => (
                  <td
                    key={run.id}
                    className="py-0.5 pl-3 text-right whitespace-nowrap"
                    title={hostBytes[i] === null ? undefined : formatExactBytes(hostBytes[i])}
                  >
                    {formatBytes(hostBytes[i])}
                  </td>
                ))}
              </tr>
            ) : null}
          </tbody>
        </table>
      </ScrollRegion>
    </section>
  );
}

/** Why FULL_SHARD holds more than SHARD_GRAD_OP, where one run of each is here, on as many ranks, and it does. */
function fullShardNote(runs: readonly ComparedRun[]): string | null {
  const [fullShard, gradOp] = ['FULL_SHARD', 'SHARD_GRAD_OP'].map((wanted) => {
    const [one, ...more] = runs.filter(({ run }) => run.strategy === wanted);
    if (!one || more.length || one.peakBytes === null || one.byCategory === null) return null;
    return { devices: one.run.devices, peakBytes: one.peakBytes, byCategory: one.byCategory };
  });
  return fullShard && gradOp && fullShard.devices === gradOp.devices ? whyFullShardHoldsMore(fullShard, gradOp) : null;
}

function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: 'text/csv;charset=utf-8' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
