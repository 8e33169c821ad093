'use client';

import { useMemo } from 'react';
import { RESOURCE_WORDS } from '../../../engine/schedule/cost.ts';
import type { Run } from '../../../server/contract.ts';
import { stepTimesOf } from '../../_lib/chart-data.ts';
import { formatAgainst, formatCount, formatMs, formatMsRange } from '../../_lib/format.ts';
import type { RunLog } from '../../_lib/run-log.ts';

/** What a step was predicted to take and what it took, with how far both are apart and what the prediction rests on. */
export function PredictedTime({ run, log, version }: { run: Run; log: RunLog; version: number }) {
  const measured = useMemo(() => (version >= 0 ? stepTimesOf(log) : null), [log, version]);
  const { estimateMs = null, boundBy, calibrated } = run.predicted ?? {};
  if (estimateMs === null) return null;
  const isInterpreted = run.adapters.every(({ name }) => name === 'interpreter');
  const isFarOff = measured !== null && !/^as/.test(formatAgainst(measured.medianMs, estimateMs));
  return (
    <section
      aria-label="Predicted and measured time"
      className="panel flex flex-wrap items-start gap-x-8 gap-y-2 p-4 sm:p-5"
    >
      <h2 className="font-semibold max-sm:basis-full">Time of a step</h2>
      <dl className="grid grid-cols-3 gap-x-4 max-sm:w-full sm:shrink-0 sm:gap-x-8" data-testid="predicted-time">
        <Figure name="predicted" about={boundBy ? `most of it ${RESOURCE_WORDS[boundBy]}` : ''}>
          {formatMs(estimateMs)}
        </Figure>
        <Figure
          name="measured"
          about={
            measured
              ? `${formatMsRange(measured.minMs, measured.maxMs)}, ${formatCount(measured.steps)} step${measured.steps === 1 ? '' : 's'}`
              : 'after the second step'
          }
        >
          {formatMs(measured?.medianMs)}
        </Figure>
        <Figure name="apart" about={measured ? 'median to prediction' : ''} warn={isFarOff}>
          {measured ? formatAgainst(measured.medianMs, estimateMs) : '–'}
        </Figure>
      </dl>
      <p className="min-w-0 flex-1 basis-72 text-xs text-faint">
        {calibrated
          ? 'Predicted by rates that were measured on this adapter: other work beside the run makes its steps longer.'
          : isInterpreted
            ? 'Predicted by built-in rates: the interpreter is timed nowhere. Expect it several times off.'
            : calibrated === undefined
              ? 'Memory is predicted to the byte; time is an estimate.'
              : 'Predicted by built-in rates, of another machine than this one: expect it several times off. The studio measures an adapter once a run has used it and the machine is quiet; a new run’s form can ask for it.'}
      </p>
    </section>
  );
}

function Figure(props: { name: string; about: string; warn?: boolean; children: string }) {
  return (
    <div className="min-w-0">
      <dt className="caps">{props.name}</dt>
      <dd className={`font-semibold whitespace-nowrap ${props.warn ? 'text-warn' : ''}`}>{props.children}</dd>
      <dd className="text-2xs text-faint">{props.about}</dd>
    </div>
  );
}
