'use client';

import { useMemo } from 'react';
import { CATEGORY_LOOKS } from '../../_lib/categories.ts';
import { formatBytes } from '../../_lib/format.ts';
import type { Plan } from '../../_lib/prediction-protocol.ts';
import { Chart, type ChartLane, type ChartLevel, type ChartRegion, type ChartSeries } from '../charts/chart.tsx';

/** Live bytes by category after every step of the schedule, with its phases. */
export function MemoryTimeline(props: {
  plan: Plan;
  title: string;
  heightPx?: number;
  budgetBytes?: number | null;
  maxY?: number;
  /** Draws what each lane does under the curve. */
  lanes?: boolean;
}) {
  const { plan, budgetBytes } = props;
  const x = useMemo(() => plan.timeline.map((_, i) => i), [plan]);
  const series = useMemo(
    (): ChartSeries[] =>
      CATEGORY_LOOKS.map(({ category, colour }, i) => ({
        label: category,
        colour,
        kind: 'area' as const,
        values: plan.timeline.map(({ byCategory }) => byCategory[i]),
      })).filter(({ values }) => values.some((bytes) => bytes > 0)),
    [plan],
  );
  const regions = useMemo(() => phasesOf(plan), [plan]);
  const lanes = useMemo(() => lanesOf(plan), [plan]);
  const levels = useMemo((): ChartLevel[] => {
    const reserved = { value: plan.peakBytes, label: `reserved ${formatBytes(plan.peakBytes)}`, colour: 'var(--ink)' };
    return budgetBytes
      ? [reserved, { value: budgetBytes, label: `budget ${formatBytes(budgetBytes)}`, colour: 'var(--bad)' }]
      : [reserved];
  }, [plan, budgetBytes]);
  return (
    <Chart
      title={props.title}
      summary={`Predicted live memory over the ${plan.timeline.length} steps of the schedule: at most ${formatBytes(plan.liveBytes)} live, ${formatBytes(plan.peakBytes)} reserved.`}
      x={x}
      series={series}
      format={formatBytes}
      formatX={(i) => stepName(plan, i)}
      restAt={plan.timeline.findIndex(({ liveBytes }) => liveBytes === plan.liveBytes)}
      heightPx={props.heightPx}
      levels={levels}
      regions={regions}
      maxY={props.maxY}
      lanes={props.lanes ? lanes : undefined}
      legend={false}
      fromZero
      stepped
    />
  );
}

function stepName(plan: Plan, index: number): string {
  const step = plan.steps[index];
  if (!step) return '';
  const { liveBytes } = plan.timeline[index];
  return `${formatBytes(liveBytes)} live${liveBytes === plan.liveBytes ? ', the peak' : ''} at ${step.label}`;
}

const LANES = ['compute', 'comm', 'host'] as const;
const KIND_COLOURS: Readonly<Record<string, string>> = {
  compute: 'var(--cat-activations)',
  'all-gather': 'var(--cat-gathered)',
  'reduce-scatter': 'var(--cat-gradients)',
  'all-reduce': 'var(--cat-gradients)',
  optimizer: 'var(--cat-optimizer)',
  upload: 'var(--cat-staging)',
  download: 'var(--cat-staging)',
};

/** The schedule's lanes, in listed order: neighbours of one kind are one span. A free is no work. */
function lanesOf(plan: Plan): ChartLane[] {
  return LANES.map((lane) => {
    const spans: { from: number; to: number; colour: string }[] = [];
    plan.steps.forEach((step, i) => {
      const colour = step.lane === lane ? KIND_COLOURS[step.kind] : undefined;
      if (!colour) return;
      const last = spans.at(-1);
      if (last?.to === i && last.colour === colour) last.to = i + 1;
      else spans.push({ from: i, to: i + 1, colour });
    });
    return { label: lane, spans };
  });
}

function phasesOf(plan: Plan): ChartRegion[] {
  const regions: { from: number; to: number; label: string }[] = [];
  plan.steps.forEach(({ phase }, i) => {
    const last = regions.at(-1);
    if (last?.label === phase) last.to = i + 1;
    else regions.push({ from: i, to: i + 1, label: phase });
  });
  return regions;
}
