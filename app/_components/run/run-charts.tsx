'use client';

import { useMemo } from 'react';
import { counted } from '../../../engine/counted.ts';
import { CATEGORY_LOOKS } from '../../_lib/categories.ts';
import {
  alignColumn,
  type ChartColumn,
  nonFiniteLosses,
  scaleAfterFirst,
  unionOfSteps,
} from '../../_lib/chart-data.ts';
import { formatBytes, formatLoss, formatMs } from '../../_lib/format.ts';
import type { RankColumns, RunLog } from '../../_lib/run-log.ts';
import { stepName } from '../../_lib/step-words.ts';
import { Chart, type ChartLevel, type ChartSeries } from '../charts/chart.tsx';

interface RunChartProps {
  readonly log: RunLog;
  /** Of the log, which is mutable. */
  readonly version: number;
  readonly empty: string;
}

const rankColour = (rank: number) => `var(--run-${(rank % 8) + 1})`;
const stepAt = (x: readonly number[]) => (i: number) => (x[i] === undefined ? '' : stepName(x[i]));

function columnsOf(log: RunLog, ranks: readonly number[]): [number, RankColumns][] {
  return ranks.flatMap((rank) => {
    const columns = log.ranks.get(rank);
    return columns ? [[rank, columns] as [number, RankColumns]] : [];
  });
}

/** Each rank's loss, and their mean. */
export function LossChart({ log, version, ranks, empty }: RunChartProps & { ranks: readonly number[] }) {
  const { x, series, words } = useMemo(() => {
    void version;
    const shown = columnsOf(log, ranks);
    const steps = unionOfSteps(shown.map(([, columns]) => columns));
    const lines = shown.map(
      ([rank, columns]): ChartSeries => ({
        label: `rank ${rank}`,
        colour: shown.length > 1 ? `color-mix(in oklab, ${rankColour(rank)} 70%, var(--panel))` : rankColour(rank),
        kind: 'line',
        widthPx: 1.2,
        values: alignColumn(steps, columns.step, columns.loss),
      }),
    );
    const [, first] = shown[0] ?? [];
    if (first && log.ranks.size > 1)
      lines.push({
        label: 'mean',
        colour: 'var(--ink)',
        kind: 'line',
        widthPx: 2,
        values: alignColumn(steps, first.step, first.lossMean),
      });
    if (log.validation.step.length)
      lines.push({
        label: 'validation',
        colour: 'var(--accent)',
        kind: 'line',
        widthPx: 2,
        sparse: true,
        values: alignColumn(steps, log.validation.step, log.validation.loss),
      });
    return { x: steps, series: lines, words: nonFiniteLosses(log, 4) };
  }, [log, version, ranks]);
  return (
    <>
      <Chart
        title="Loss"
        summary={summaryOf('Loss', x, series, formatLoss)}
        x={x}
        series={series}
        format={formatLoss}
        formatX={stepAt(x)}
        empty={empty}
      />
      {words.length ? (
        <p className="mt-1.5 text-xs text-bad">
          {words.map(({ step, rank, word }) => `${word} at ${stepName(step)}, rank ${rank}`).join(' · ')}
        </p>
      ) : null}
    </>
  );
}

/** Each rank's time for a step. A first step that compiles kernels leaves the scale to the others, and is said in words. */
export function IterationChart({
  log,
  version,
  ranks,
  empty,
  predictedMs,
}: RunChartProps & { ranks: readonly number[]; predictedMs: number | null }) {
  const { x, series, scale } = useMemo(() => {
    void version;
    const shown = columnsOf(log, ranks);
    const steps = unionOfSteps(shown.map(([, columns]) => columns));
    return {
      x: steps,
      scale: scaleAfterFirst(shown.map(([, columns]) => columns.iterationMs)),
      series: shown.map(
        ([rank, columns]): ChartSeries => ({
          label: `rank ${rank}`,
          colour: rankColour(rank),
          kind: 'line',
          values: alignColumn(steps, columns.step, columns.iterationMs),
        }),
      ),
    };
  }, [log, version, ranks]);
  const levels = useMemo(
    (): ChartLevel[] =>
      predictedMs === null
        ? []
        : [{ value: predictedMs, label: `predicted ${formatMs(predictedMs)}`, colour: 'var(--accent)' }],
    [predictedMs],
  );
  return (
    <Chart
      title="Iteration time"
      summary={summaryOf('Iteration time', x, series, formatMs)}
      x={x}
      series={series}
      format={formatMs}
      formatX={stepAt(x)}
      empty={empty}
      maxY={scale?.maxY}
      levels={levels}
      aside={scale ? <span className="text-xs text-faint">first step {formatMs(scale.firstMs)}</span> : null}
      fromZero
    />
  );
}

/** One rank's live bytes by category, stacked under what it holds reserved; the prediction as a dashed line. */
export function MemoryChart(
  props: RunChartProps & {
    rank: number;
    predicted: { peakBytes: number; liveBytes: number } | null;
    budgetMiB: number | null;
  },
) {
  const { log, version, rank, predicted, budgetMiB } = props;
  const { x, series } = useMemo(() => {
    void version;
    const columns = log.ranks.get(rank);
    if (!columns) return { x: [], series: [] };
    const steps = [...columns.step];
    const areas = CATEGORY_LOOKS.map(
      ({ category, colour }, i): ChartSeries => ({
        label: category,
        colour,
        kind: 'area',
        values: [...columns.byCategory[i]] as ChartColumn,
      }),
    ).filter(({ values }) => values.some((bytes) => bytes));
    return {
      x: steps,
      series: [
        ...areas,
        {
          label: 'reserved',
          colour: 'var(--ink)',
          kind: 'line' as const,
          widthPx: 2,
          values: [...columns.currentBytes],
        },
      ],
    };
  }, [log, version, rank]);
  const levels = useMemo((): ChartLevel[] => {
    const lines: ChartLevel[] = [];
    if (predicted)
      lines.push({
        value: predicted.liveBytes,
        label: `predicted live ${formatBytes(predicted.liveBytes)}`,
        colour: 'var(--accent)',
      });
    if (budgetMiB)
      lines.push({
        value: budgetMiB * 2 ** 20,
        label: `budget ${formatBytes(budgetMiB * 2 ** 20)}`,
        colour: 'var(--bad)',
      });
    return lines;
  }, [predicted, budgetMiB]);
  return (
    <Chart
      title={`Memory, rank ${rank}`}
      summary={summaryOf(`Memory of rank ${rank}`, x, series, formatBytes)}
      x={x}
      series={series}
      format={formatBytes}
      formatX={stepAt(x)}
      heightPx={260}
      levels={levels}
      empty={props.empty}
      fromZero
    />
  );
}

/** The last values in words. */
export function summaryOf(
  what: string,
  x: readonly number[],
  series: readonly ChartSeries[],
  format: (value: number) => string,
): string {
  if (!x.length) return `${what}: nothing yet`;
  const last = series.map(({ label, values }) => {
    const value = values.at(-1);
    return `${label} ${value === null || value === undefined ? 'no number' : format(value)}`;
  });
  return `${what} over ${counted(x.length, 'step')}. At ${stepName(x[x.length - 1])}: ${last.join(', ')}.`;
}
