import type { ReactNode } from 'react';
import { type ComparedRun, commonLosses } from '../../_lib/comparison-table.ts';
import { formatCount, formatMsRange } from '../../_lib/format.ts';

/** The answer in a sentence, once there are two numbers to compare. */
export function Headline({ runs, labels }: { runs: readonly ComparedRun[]; labels: readonly string[] }) {
  const measured = runs.flatMap(({ peakBytes, iterationMs, iterationSpread }, i) =>
    peakBytes !== null && iterationMs !== null && iterationSpread !== null
      ? [{ label: labels[i], peakBytes, iterationMs, spread: iterationSpread }]
      : [],
  );
  if (measured.length < 2) return null;
  const [first, ...rest] = measured;
  const least = rest.reduce((a, b) => (b.peakBytes < a.peakBytes ? b : a));
  // Until all have ended they are compared over the steps that they have in common so far.
  const isFinal = runs.every(({ run }) => run.endedAt !== null);
  const memory = moreOrLess(least.peakBytes / first.peakBytes);
  const time = moreOrLess(least.iterationMs / first.iterationMs);
  const ranges = [least, first].map(({ spread }) => formatMsRange(spread.minMs, spread.maxMs));
  const overlap = least.spread.minMs <= first.spread.maxMs && first.spread.minMs <= least.spread.maxMs;
  return (
    <div data-testid="headline">
      <p className="text-base text-muted">
        {isFinal ? '' : 'So far, '}
        <Strong>{least.label}</Strong> holds <Strong>{memory}</Strong> memory {memory === SAME ? 'as' : 'than'}{' '}
        <Strong>{first.label}</Strong> and takes <Strong>{time}</Strong> time for a step.
      </p>
      <p className="mt-0.5 text-xs text-faint">
        {least.spread.steps === first.spread.steps
          ? `Medians of ${stepsOf(first.spread.steps)}`
          : `Medians of ${stepsOf(least.spread.steps)} and of ${stepsOf(first.spread.steps)}`}
        , which took {ranges[0]} and {ranges[1]}
        {overlap ? ': they overlap, so other steps may say otherwise. ' : '. '}
        <Losses runs={runs} isFinal={isFinal} />
      </p>
    </div>
  );
}

/** What can be said of the losses: only of the steps that all have. */
function Losses({ runs, isFinal }: { runs: readonly ComparedRun[]; isFinal: boolean }) {
  const common = commonLosses(runs);
  if (!common?.equal) return null;
  const begun = runs.filter(({ lossMeans }) => lossMeans.length > 0).length;
  const who = begun === runs.length ? 'all' : `${begun} of them`;
  const where =
    common.steps === 1 ? `the one step that ${who} have` : `the ${formatCount(common.steps)} steps that ${who} have`;
  return `Their losses are equal to the last bit at ${where}${isFinal ? '' : ' so far'}.`;
}

const SAME = 'as much';

function moreOrLess(ratio: number): string {
  if (Math.abs(ratio - 1) < 0.005) return SAME;
  return ratio < 1 ? `${Math.round((1 - ratio) * 100)} % less` : `${Math.round((ratio - 1) * 100)} % more`;
}

const stepsOf = (count: number) => `${formatCount(count)} step${count === 1 ? '' : 's'}`;

function Strong({ children }: { children: ReactNode }) {
  return <b className="font-semibold text-ink">{children}</b>;
}
