'use client';

import Link from 'next/link';
import { useState } from 'react';
import type { RunSummary } from '../../../server/contract.ts';
import { formatAgo, formatBytes, formatExactBytes, formatLoss, formatMs, formatTime } from '../../_lib/format.ts';
import { useRunColours } from '../../_lib/run-colours.ts';
import { useNow } from '../../_lib/use-now.ts';
import { useRuns } from '../../_lib/use-runs.ts';
import { ButtonLink, buttonClass } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';
import { Dot } from '../ui/segmented.tsx';
import { Progress, progressColour } from './progress.tsx';
import { QuickStart, QuickStartButton } from './quick-start.tsx';
import { isActive, StateChip } from './state-chip.tsx';

/** A list this long gets a filter. */
const FILTER_FROM = 8;

/** All runs, newest first: what each is doing and what it costs. Two or more ticked go to their comparison. */
export function RunsPage() {
  const { data, error, isPending } = useRuns();
  const now = useNow();
  const runs = data?.runs ?? [];
  const [filter, setFilter] = useState('');
  const shown = runs.filter((run) => matches(run, filter));
  const [ticked, setTicked] = useState<ReadonlySet<string>>(new Set());
  const chosen = runs.filter(({ id }) => ticked.has(id)).map(({ id }) => id);
  // Colours are given in the order in which runs came to be.
  const colourOf = useRunColours(runs.map(({ id }) => id).reverse());
  const toggle = (id: string) =>
    setTicked((before) => {
      const after = new Set(before);
      if (!after.delete(id)) after.add(id);
      return after;
    });

  if (error && !data)
    return (
      <Notice tone="bad" page title="The runs cannot be shown">
        {error.message}
      </Notice>
    );
  if (isPending) return <p className="py-20 text-center text-faint">Loading runs…</p>;
  if (!runs.length) return <QuickStart />;

  const active = runs.filter(({ state }) => isActive(state)).length;
  return (
    <>
      <div className="mb-4 flex flex-wrap items-center gap-x-3 gap-y-2">
        <h1 className="text-lg font-semibold tracking-tight">Runs</h1>
        <p className="text-muted" aria-live="polite">
          {data && data.total > runs.length ? `${runs.length} newest of ${data.total}` : `${runs.length} in all`}
          {active ? `, ${active} active` : ''}
        </p>
        <div className="ml-auto flex flex-wrap gap-2">
          {runs.length > FILTER_FROM ? (
            <input
              type="search"
              value={filter}
              onChange={(e) => setFilter(e.target.value)}
              placeholder="Filter"
              aria-label="Filter runs by name, state, strategy or adapter"
              className="field-box w-44"
            />
          ) : null}
          <QuickStartButton />
          <ButtonLink href="/runs/new" look="primary">
            <Icon name="plus" className="size-3.5" />
            New run
          </ButtonLink>
        </div>
      </div>
      {error ? (
        <div className="mb-3">
          <Notice tone="warn" title="These may be out of date">
            {error.message}
          </Notice>
        </div>
      ) : null}
      <div className="panel overflow-hidden">
        <table aria-label="Runs" className="block w-full md:table">
          <thead className="hidden border-b border-line md:table-header-group">
            <tr className="caps text-left">
              <th scope="col" className="w-9 py-2 pl-3.5">
                <span className="sr-only">Compare</span>
              </th>
              {['Run', 'State', 'Strategy', 'Ranks', 'Progress'].map((head) => (
                <th key={head} scope="col" className="px-2.5 py-2 font-medium">
                  {head}
                </th>
              ))}
              {['Loss', 'Iteration', 'Peak memory'].map((head) => (
                <th key={head} scope="col" className="px-2.5 py-2 text-right font-medium last:pr-4">
                  {head}
                </th>
              ))}
            </tr>
          </thead>
          <tbody className="block md:table-row-group">
            {shown.map((run) => (
              <RunRow
                key={run.id}
                now={now}
                run={run}
                colour={colourOf(run.id)}
                ticked={ticked.has(run.id)}
                onTick={() => toggle(run.id)}
              />
            ))}
          </tbody>
        </table>
      </div>
      {shown.length ? null : <p className="py-10 text-center text-faint">No run matches “{filter}”.</p>}
      {chosen.length ? (
        <div className="pointer-events-none fixed inset-x-0 bottom-4 z-20 flex justify-center px-4">
          <div
            role="status"
            className="panel pointer-events-auto flex items-center gap-3 py-2 pr-2 pl-4 shadow-[0_8px_30px_rgb(0_0_0/0.18)] motion-safe:animate-[rise_160ms_ease-out]"
          >
            <span>{chosen.length === 1 ? 'Tick one more to compare' : `${chosen.length} runs`}</span>
            <button type="button" className={buttonClass('quiet')} onClick={() => setTicked(new Set())}>
              Clear
            </button>
            {chosen.length > 1 ? (
              <ButtonLink
                look="primary"
                href={`/compare?ids=${[...chosen].reverse().map(encodeURIComponent).join(',')}`}
              >
                <Icon name="compare" className="size-3.5" />
                Compare
              </ButtonLink>
            ) : null}
          </div>
        </div>
      ) : null}
    </>
  );
}

/** Every word of the filter is somewhere in what the row shows. */
function matches({ name, state, strategy, adapter }: RunSummary, filter: string): boolean {
  const text = `${name} ${state} ${strategy} ${adapter}`.toLowerCase();
  return filter
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

function RunRow({
  now,
  run,
  colour,
  ticked,
  onTick,
}: {
  run: RunSummary;
  colour: string;
  ticked: boolean;
  onTick: () => void;
  now: number | null;
}) {
  const cell = 'px-2.5 py-2 md:table-cell';
  return (
    <tr className="relative grid grid-cols-[auto_1fr_1fr_1fr] items-center gap-y-0.5 border-b border-line px-1.5 py-2 last:border-0 hover:bg-hover has-checked:bg-accent-soft/60 md:table-row md:p-0">
      <td className="row-span-2 self-start py-2 pl-2 md:table-cell md:w-9 md:pl-3.5 md:align-middle">
        <input
          type="checkbox"
          checked={ticked}
          onChange={onTick}
          aria-label={`Compare ${run.name}`}
          className="relative z-10 block size-4 accent-[var(--accent-fill)] pointer-coarse:size-5"
        />
      </td>
      <td className={`${cell} col-span-2 min-w-0`}>
        <div className="flex min-w-0 items-center gap-2">
          <Dot colour={colour} />
          <Link
            href={`/runs/${encodeURIComponent(run.id)}`}
            className="min-w-0 truncate font-medium after:absolute after:inset-0 hover:text-accent md:max-w-72"
          >
            {run.name}
          </Link>
        </div>
        <p
          className="mt-0.5 truncate pl-4 text-xs text-faint md:max-w-72"
          title={formatTimeIfKnown(run.createdAt, now)}
        >
          {now === null ? '' : `${formatAgo(run.createdAt, now)} · `}
          {run.adapter}
        </p>
      </td>
      <td className={`${cell} self-start max-md:text-right`}>
        <span title={run.reason}>
          <StateChip state={run.state} />
        </span>
      </td>
      <td className={`${cell} col-start-2 col-span-3 font-mono text-xs text-muted max-md:py-0 md:text-ink`}>
        {run.strategy}
        <span className="md:hidden"> · {run.devices} ranks</span>
      </td>
      <td className={`${cell} hidden`}>{run.devices}</td>
      <td className={`${cell} col-start-2 col-span-3 md:w-48`}>
        {run.state === 'queued' ? (
          <span className="block max-w-56 truncate text-xs text-faint" title={run.reason}>
            {run.reason}
          </span>
        ) : (
          <Progress
            label={`Progress of ${run.name}`}
            done={run.stepsDone}
            of={run.steps}
            colour={progressColour(run.state)}
          />
        )}
      </td>
      <Figure label="loss" value={formatLoss(run.lossMean)} />
      <Figure label="iteration" value={formatMs(run.iterationMs)} />
      <Figure
        label="peak"
        value={formatBytes(run.peakBytes)}
        title={run.peakBytes === null ? undefined : `${formatExactBytes(run.peakBytes)} reserved by the fullest rank`}
      />
    </tr>
  );
}

const formatTimeIfKnown = (iso: string, now: number | null) => (now === null ? undefined : formatTime(iso));

function Figure({ label, value, title }: { label: string; value: string; title?: string }) {
  return (
    <td
      className="px-2.5 whitespace-nowrap max-md:last:text-right md:table-cell md:py-2 md:text-right md:last:pr-4 max-md:nth-last-3:col-start-2"
      title={title}
    >
      <span className="caps block md:hidden">{label}</span>
      {value}
    </td>
  );
}
