'use client';

import { useMemo } from 'react';
import type { z } from 'zod';
import { CATEGORIES } from '../../../engine/schedule/schedule.ts';
import type { Prediction } from '../../../server/contract.ts';
import { CATEGORY_LOOKS } from '../../_lib/categories.ts';
import { formatBytes, formatExactBytes, NONE } from '../../_lib/format.ts';
import type { RunLog } from '../../_lib/run-log.ts';
import { ChartNoteText } from '../charts/chart-note.tsx';
import { StackBar } from '../charts/stack-bar.tsx';
import { Icon } from '../ui/icon.tsx';
import { Dot } from '../ui/segmented.tsx';

/** What the planner said and what the rank held, to the byte, by category at the fullest moment. */
export function PredictedMeasured(props: {
  predicted: z.infer<typeof Prediction> | null;
  log: RunLog;
  version: number;
  rank: number;
}) {
  const { predicted, log, version, rank } = props;
  const measured = useMemo(() => {
    void version;
    const columns = log.ranks.get(rank);
    if (!columns?.step.length) return null;
    const at = columns.liveBytes.reduce((best, bytes, i) => (bytes > columns.liveBytes[best] ? i : best), 0);
    return {
      peakBytes: columns.peakBytes.at(-1) ?? 0,
      liveBytes: columns.liveBytes[at],
      byCategory: CATEGORIES.map((_, i) => columns.byCategory[i][at]),
    };
  }, [log, version, rank]);
  const planned = predicted && CATEGORIES.map((category) => predicted.byCategory[category]);
  const most = Math.max(predicted?.peakBytes ?? 0, measured?.peakBytes ?? 0);
  const rows = CATEGORY_LOOKS.map(({ category, colour }, i) => ({
    name: category as string,
    colour: colour as string | null,
    planned: planned?.[i] ?? null,
    measured: measured?.byCategory[i] ?? null,
  }));
  const totals = [
    { name: 'live', colour: null, planned: predicted?.liveBytes ?? null, measured: measured?.liveBytes ?? null },
    { name: 'reserved', colour: null, planned: predicted?.peakBytes ?? null, measured: measured?.peakBytes ?? null },
  ];
  return (
    <section aria-label="Predicted and measured memory">
      <h2 className="font-semibold">
        Predicted and measured <ChartNoteText />
      </h2>
      <p className="text-xs text-faint">Rank {rank}, at its fullest moment. Prediction of the fullest rank.</p>
      <div className="mt-3 grid grid-cols-[auto_1fr] items-center gap-x-3 gap-y-1.5 text-xs text-muted">
        <span>predicted</span>
        {planned ? (
          <StackBar
            label="Predicted live memory by category"
            byCategory={planned}
            reservedBytes={predicted?.peakBytes}
            ofBytes={most}
          />
        ) : (
          <span>{NONE}</span>
        )}
        <span>measured</span>
        {measured ? (
          <StackBar
            label="Measured live memory by category"
            byCategory={measured.byCategory}
            reservedBytes={measured.peakBytes}
            ofBytes={most}
          />
        ) : (
          <span>{NONE}</span>
        )}
      </div>
      <table className="mt-3 w-full" aria-label="Predicted and measured memory by category">
        <thead>
          <tr className="caps">
            <th scope="col" className="py-1 text-left font-medium">
              Category
            </th>
            <th scope="col" className="py-1 text-right font-medium">
              Predicted
            </th>
            <th scope="col" className="py-1 text-right font-medium">
              Measured
            </th>
            <th scope="col" className="w-16 py-1 text-right font-medium">
              Apart
            </th>
          </tr>
        </thead>
        <tbody>
          {[...rows, ...totals].map((row, i) => (
            <tr key={row.name} className={i >= rows.length ? 'border-t border-line font-semibold' : ''}>
              <th scope="row" className={`py-[3px] text-left ${i < rows.length ? 'font-normal' : 'font-semibold'}`}>
                <span className="flex items-center gap-2">
                  {row.colour ? <Dot colour={row.colour} square /> : null}
                  {row.name}
                </span>
              </th>
              <Bytes value={row.planned} />
              <Bytes value={row.measured} />
              <td className="text-right text-xs whitespace-nowrap">
                <Apart planned={row.planned} measured={row.measured} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}

function Bytes({ value }: { value: number | null }) {
  return (
    <td className="text-right whitespace-nowrap" title={value === null ? undefined : formatExactBytes(value)}>
      {formatBytes(value)}
    </td>
  );
}

function Apart({ planned, measured }: { planned: number | null; measured: number | null }) {
  if (planned === null || measured === null) return <span className="text-faint">{NONE}</span>;
  if (planned === measured)
    return (
      <span className="inline-flex items-center gap-1 text-good" title="equal to the byte">
        <Icon name="check" className="size-3.5" />0 B
      </span>
    );
  return (
    <span className="text-warn" title={formatExactBytes(measured - planned)}>
      {measured > planned ? '+' : '−'}
      {formatBytes(Math.abs(measured - planned))}
    </span>
  );
}
