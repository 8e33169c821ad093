'use client';

import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useRouter } from 'next/navigation';
import { useMemo, useState } from 'react';
import type { Run } from '../../../server/contract.ts';
import { ApiError, deleteRun, listRuns, saveRun, stepsCsvUrl, stopRun } from '../../_lib/api.ts';
import { fullestRank, median, ranksOf } from '../../_lib/chart-data.ts';
import { comparedWith } from '../../_lib/compared-runs.ts';
import { valueAt } from '../../_lib/config-draft.ts';
import {
  formatAgo,
  formatBytes,
  formatCount,
  formatDuration,
  formatExactBytes,
  formatLoss,
  formatMs,
  formatShortCount,
  formatTime,
  NONE,
  timeLeftMs,
} from '../../_lib/format.ts';
import { useRunColours } from '../../_lib/run-colours.ts';
import type { RunLog } from '../../_lib/run-log.ts';
import { simulatedLinkNote } from '../../_lib/simulated-link.ts';
import { stepsDone } from '../../_lib/step-words.ts';
import { useNow } from '../../_lib/use-now.ts';
import { type FollowedRun, useRunLogs } from '../../_lib/use-run-logs.ts';
import { useRun } from '../../_lib/use-runs.ts';
import { ChartNote } from '../charts/chart-note.tsx';
import { Progress, progressColour } from '../runs/progress.tsx';
import { isActive, StateChip } from '../runs/state-chip.tsx';
import { TracePanel } from '../trace/trace-panel.tsx';
import { Button, ButtonLink, buttonClass } from '../ui/button.tsx';
import { ConfigPanel } from '../ui/config-panel.tsx';
import { ConfirmButton } from '../ui/confirm.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';
import { Dot, Segmented } from '../ui/segmented.tsx';
import { Checkpoints } from './checkpoints.tsx';
import { ErrorPanel } from './error-panel.tsx';
import { MemorySummary } from './memory-summary.tsx';
import { PredictedMeasured } from './predicted-measured.tsx';
import { PredictedTime } from './predicted-time.tsx';
import { IterationChart, LossChart, MemoryChart } from './run-charts.tsx';
import { RunLogView } from './run-log-view.tsx';

/** One run: what it is doing, its curves by rank, predicted beside measured, what it wrote. */
export function RunPage({ id }: { id: string }) {
  const { data: run, error, isPending } = useRun(id);
  const [followed] = useRunLogs(run ? [id] : []);
  if (!run) {
    if (isPending) return <p className="py-20 text-center text-faint">Loading the run…</p>;
    const missing = error instanceof ApiError && error.status === 404;
    return (
      <Notice
        tone="bad"
        page
        title={missing ? 'There is no such run' : 'The run cannot be shown'}
        action={<ButtonLink href="/runs">All runs</ButtonLink>}
      >
        {missing ? 'It may have been deleted.' : error?.message}
      </Notice>
    );
  }
  return (
    <div className="space-y-4">
      <Header run={run} log={followed?.follower.log ?? null} />
      {followed?.follower.problem ? (
        <Notice tone="warn" title="Live updates are interrupted">
          {followed.follower.problem}
        </Notice>
      ) : null}
      {run.error ? <ErrorPanel run={run} error={run.error} /> : null}
      <ChartNote value={simulatedLinkNote([run.config])}>
        {followed ? <Body run={run} followed={followed} /> : null}
      </ChartNote>
    </div>
  );
}

function Header({ run, log }: { run: Run; log: RunLog | null }) {
  const router = useRouter();
  const client = useQueryClient();
  const now = useNow();
  const colourOf = useRunColours([run.id]);
  const stop = useMutation({
    mutationFn: () => stopRun(run.id),
    onSettled: () => client.invalidateQueries({ queryKey: ['run', run.id] }),
  });
  const save = useMutation({ mutationFn: () => saveRun(run.id) });
  const remove = useMutation({
    mutationFn: () => deleteRun(run.id),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: ['runs'] });
      router.push('/runs');
    },
  });
  const active = isActive(run.state);
  const paceMs = run.iterationMs ?? (log ? median([...(log.ranks.get(0)?.iterationMs.slice(1) ?? [])]) : null);
  const left = run.state === 'running' ? timeLeftMs(run.stepsDone, run.steps, paceMs) : null;
  const took = run.startedAt && run.endedAt ? Date.parse(run.endedAt) - Date.parse(run.startedAt) : null;
  return (
    <header className="panel p-4 sm:p-5">
      <div className="flex flex-wrap items-start gap-x-3 gap-y-3">
        <div className="min-w-0 flex-1 basis-64">
          <div className="flex flex-wrap items-center gap-x-2.5 gap-y-1">
            <Dot colour={colourOf(run.id)} />
            <h1 className="min-w-0 text-lg font-semibold tracking-tight">{run.name}</h1>
            <span aria-live="polite" data-testid="run-state">
              <StateChip state={run.state} />
            </span>
          </div>
          {run.error ? null : <p className="mt-1 text-muted">{run.reason}</p>}
          <p className="mt-1 text-xs text-faint">
            <span className="font-mono">{run.strategy}</span> · {run.devices === 1 ? '1 rank' : `${run.devices} ranks`}{' '}
            · {run.adapters.length ? adapterNames(run) : run.adapter}
            {run.params === null ? '' : ` · ${formatCount(run.params)} parameters`}
            {now === null ? '' : <span title={formatTime(run.createdAt)}> · {formatAgo(run.createdAt, now)}</span>}
            {took === null ? '' : ` · took ${formatDuration(took)}`}
          </p>
        </div>
        <div className="flex flex-wrap gap-2">
          {run.state === 'running' ? (
            <Button
              onClick={() => save.mutate()}
              disabled={save.isPending}
              title="Saves after the step under way; training goes on"
            >
              <Icon name="download" className="size-3.5" />
              Save now
            </Button>
          ) : null}
          {active ? (
            <Button onClick={() => stop.mutate()} disabled={stop.isPending || run.state === 'stopping'}>
              <Icon name="stop" className="size-3.5" />
              {run.state === 'stopping' ? 'Stopping…' : 'Stop'}
            </Button>
          ) : null}
          <GroupLink run={run} />
          <ButtonLink href={`/runs/new?from=${encodeURIComponent(run.id)}`}>
            <Icon name="clone" className="size-3.5" />
            Clone
          </ButtonLink>
          {active ? null : (
            <ConfirmButton
              label="Delete"
              icon="trash"
              title={`Delete ${run.name}?`}
              text="Its metrics, its log and its checkpoints are removed from the data folder. This cannot be undone."
              confirm="Delete the run"
              disabled={remove.isPending}
              onConfirm={() => remove.mutate()}
            />
          )}
        </div>
      </div>
      {run.state === 'queued' ? null : (
        <div className="mt-4">
          <Progress
            label="Progress of the run"
            done={run.stepsDone}
            of={run.steps}
            tall
            bare
            colour={progressColour(run.state)}
          />
          <p className="mt-1.5 flex justify-between text-xs text-muted">
            <span>{stepsDone(run.stepsDone, run.steps)}</span>
            <span data-testid="time-left">{left === null ? '' : `about ${formatDuration(left)} left`}</span>
          </p>
        </div>
      )}
      {stop.error || remove.error || save.error ? (
        <div className="mt-3">
          <Notice
            tone="bad"
            title={
              stop.error ? 'The run was not stopped' : save.error ? 'The run did not save' : 'The run was not deleted'
            }
          >
            {(stop.error ?? save.error ?? remove.error)?.message}
          </Notice>
        </div>
      ) : null}
    </header>
  );
}

/** To the comparison with the run that this one continues, or else with those that were queued together with it. */
function GroupLink({ run }: { run: Run }) {
  const { data } = useQuery({
    queryKey: ['runs'],
    queryFn: ({ signal }) => listRuns(signal),
    enabled: run.group !== null || run.parent !== null,
  });
  const ids = comparedWith(run, data?.runs ?? []);
  if (ids.length < 2) return null;
  return (
    <ButtonLink href={`/compare?ids=${ids.map(encodeURIComponent).join(',')}`}>
      <Icon name="compare" className="size-3.5" />
      Compare
    </ButtonLink>
  );
}

function adapterNames({ adapters, devices }: Run): string {
  const names = [...new Set(adapters.map(({ name, software }) => (software ? `${name} (software)` : name)))];
  return `${names.join(', ')}${names.length === 1 && devices > 1 ? ', shared' : ''}`;
}

function Body({ run, followed }: { run: Run; followed: FollowedRun }) {
  const { log, caughtUp } = followed.follower;
  const { version } = followed;
  const [chosen, setChosen] = useState<number | 'all'>('all');
  const ranks = useMemo(() => (version >= 0 ? ranksOf(log) : []), [log, version]);
  const fullest = useMemo(() => (version >= 0 ? fullestRank(log) : null), [log, version]);
  const memoryRank = chosen === 'all' ? (fullest?.rank ?? 0) : chosen;
  const shown = chosen === 'all' ? ranks : [chosen];
  const waiting = !caughtUp
    ? 'Loading…'
    : isActive(run.state)
      ? 'Waits for the first step'
      : 'This run reported no step';
  return (
    <>
      <div className="flex flex-wrap items-stretch gap-4">
        <Tiles run={run} log={log} version={version} />
      </div>
      {ranks.length ? (
        <div className="flex flex-wrap items-center gap-2">
          {ranks.length > 1 ? (
            <Segmented<number | 'all'>
              label="Ranks to show"
              segments={[
                { value: 'all', label: 'All ranks' },
                ...ranks.map((rank) => ({ value: rank, label: `Rank ${rank}` })),
              ]}
              value={chosen}
              onChange={setChosen}
            />
          ) : null}
          <a href={stepsCsvUrl(run.id)} download className={`${buttonClass('quiet')} ml-auto`}>
            <Icon name="download" className="size-3.5" />
            Steps as CSV
          </a>
        </div>
      ) : null}
      <div className="grid gap-4 lg:grid-cols-2">
        <div className="panel min-w-0 p-4 sm:p-5">
          <LossChart log={log} version={version} ranks={shown} empty={waiting} />
        </div>
        <div className="panel min-w-0 p-4 sm:p-5">
          <IterationChart
            log={log}
            version={version}
            ranks={shown}
            empty={waiting}
            predictedMs={run.predicted?.estimateMs ?? null}
          />
        </div>
      </div>
      <PredictedTime run={run} log={log} version={version} />
      <div className="grid gap-4 lg:grid-cols-[minmax(0,1.35fr)_minmax(0,1fr)]">
        <div className="panel min-w-0 p-4 sm:p-5">
          <MemoryChart
            log={log}
            version={version}
            rank={memoryRank}
            predicted={run.predicted}
            budgetMiB={budgetOf(run)}
            empty={waiting}
          />
        </div>
        <div className="panel min-w-0 p-4 sm:p-5">
          <PredictedMeasured predicted={run.predicted} log={log} version={version} rank={memoryRank} />
        </div>
      </div>
      <TracePanel run={run} />
      <Checkpoints run={run} />
      <div className="grid gap-4 lg:grid-cols-2">
        <RunLogView log={log} version={version} />
        <ConfigPanel config={run.config} height="max-h-80" />
      </div>
      <MemorySummary log={log} version={version} />
    </>
  );
}

const budgetOf = (run: Run): number | null => {
  const budget = valueAt(run.config, 'memoryBudgetMiB');
  return typeof budget === 'number' ? budget : null;
};

function Tiles({ run, log, version }: { run: Run; log: RunLog; version: number }) {
  const first = useMemo(() => (version >= 0 ? log.ranks.get(ranksOf(log)[0] ?? 0) : undefined), [log, version]);
  const tokensPerSecond =
    first && run.iterationMs ? ((first.tokens.at(-1) ?? 0) * run.devices * 1000) / run.iterationMs : null;
  const retries = [...log.ranks.values()].reduce((sum, { allocRetries }) => sum + allocRetries, 0);
  const estimateMs = run.predicted?.estimateMs ?? null;
  const tiles: [string, string, string?][] = [
    ['Loss', formatLoss(run.lossMean), 'mean over ranks, last step'],
    [
      'Gradient norm',
      formatLoss(first ? (Number.isFinite(first.gradNorm.at(-1)) ? first.gradNorm.at(-1) : null) : null),
      'before clipping',
    ],
    [
      'Iteration',
      formatMs(run.iterationMs),
      run.iterationMs === null || estimateMs === null
        ? 'median after the first step'
        : `median; predicted ${formatMs(estimateMs)}`,
    ],
    ['Throughput', tokensPerSecond === null ? NONE : `${formatShortCount(tokensPerSecond)} tok/s`, 'all ranks'],
    [
      'Peak reserved',
      formatBytes(run.peakBytes),
      run.peakBytes === null ? 'fullest rank' : formatExactBytes(run.peakBytes),
    ],
    ...(retries
      ? ([['Allocation retries', formatCount(retries), 'limitAllGathers would avoid them']] as [
          string,
          string,
          string,
        ][])
      : []),
  ];
  return (
    <dl className="panel grid w-full grid-cols-2 gap-px overflow-hidden bg-line sm:grid-cols-3 lg:grid-cols-5">
      {tiles.map(([name, value, about]) => (
        <div key={name} className="bg-panel px-4 py-3 max-sm:last:col-span-2">
          <dt className="caps">{name}</dt>
          <dd className="mt-0.5 text-lg/7 font-semibold tracking-tight whitespace-nowrap sm:text-xl/7">{value}</dd>
          <dd className="text-2xs text-faint">{about}</dd>
        </div>
      ))}
    </dl>
  );
}
