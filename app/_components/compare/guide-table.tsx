import Link from 'next/link';
import type { ReactNode } from 'react';
import { type ComparedRun, commonLosses } from '../../_lib/comparison-table.ts';
import { formatBytes, formatExactBytes, formatLoss, formatMs, formatMsRange, formatRatio } from '../../_lib/format.ts';
import { stepName } from '../../_lib/step-words.ts';
import { Progress } from '../runs/progress.tsx';
import { StateChip } from '../runs/state-chip.tsx';
import { Dot } from '../ui/segmented.tsx';

/**
 * The table of the FSDP guides: memory and time by strategy, each also as a ratio to the first run's. A phone shows each run as
 * a block with the same figures.
 */
export function GuideTable({ runs, colourOf }: { runs: readonly ComparedRun[]; colourOf: (id: string) => string }) {
  const [first] = runs;
  const losses = commonLosses(runs);
  const heads = [
    'Strategy',
    'Memory',
    'to first',
    'Iteration',
    'to first',
    losses ? `Loss at ${stepName(losses.last)}` : 'Loss',
  ];
  const cell = 'md:px-3 md:py-2.5 md:align-top whitespace-nowrap';
  return (
    <div className="panel overflow-hidden">
      <table className="block w-full md:table" aria-label="Comparison">
        <thead className="hidden border-b border-line md:table-header-group">
          <tr className="caps">
            {heads.map((head, i) => (
              <th
                // biome-ignore lint/suspicious/noArrayIndexKey: two columns have the same head.
                key={i}
                scope="col"
                className={`px-3 py-2 font-medium ${i ? 'text-right' : 'pl-4 text-left'}`}
              >
                {head}
              </th>
            ))}
            {['State', 'Run'].map((head) => (
              <th key={head} scope="col" className="px-3 py-2 text-left font-medium last:pr-4 lg:pl-8">
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody className="block md:table-row-group">
          {runs.map(({ run, peakBytes, iterationMs, iterationSpread, lossMeans }, i) => {
            const latest = run.lossMean ?? lossMeans.at(-1) ?? null;
            const wentOn = losses !== null && run.stepsDone - 1 > losses.last;
            return (
              <tr
                key={run.id}
                className="grid grid-cols-3 gap-x-3 gap-y-2 border-b border-line px-4 py-3 last:border-0 md:table-row md:p-0"
              >
                <th scope="row" className={`${cell} col-span-2 text-left font-medium md:pl-4`}>
                  <span className="flex items-center gap-2">
                    <Dot colour={colourOf(run.id)} />
                    <span className="font-mono text-xs whitespace-normal">{run.strategy}</span>
                    <span className="font-normal text-faint">× {run.devices}</span>
                  </span>
                </th>
                <td className={`${cell} row-start-2 md:text-right`}>
                  <Head>memory</Head>
                  <span
                    className="font-semibold"
                    title={peakBytes === null ? undefined : formatExactBytes(peakBytes)}
                    data-bytes={peakBytes ?? undefined}
                  >
                    {formatBytes(peakBytes)}
                  </span>
                  <Below phone>{formatRatio(peakBytes, first.peakBytes)}</Below>
                </td>
                <td className={`${cell} hidden text-right text-muted md:table-cell`}>
                  {formatRatio(peakBytes, first.peakBytes)}
                </td>
                <td className={`${cell} row-start-2 md:text-right`}>
                  <Head>iteration</Head>
                  <span className="font-semibold" data-ms={iterationMs ?? undefined}>
                    {formatMs(iterationMs)}
                  </span>
                  <Below phone>{formatRatio(iterationMs, first.iterationMs)}</Below>
                  {iterationSpread ? (
                    <Below title="The quickest and the slowest of the steps that the median is over">
                      {formatMsRange(iterationSpread.minMs, iterationSpread.maxMs)}
                    </Below>
                  ) : null}
                </td>
                <td className={`${cell} hidden text-right text-muted md:table-cell`}>
                  {formatRatio(iterationMs, first.iterationMs)}
                </td>
                <td className={`${cell} row-start-2 text-right`}>
                  <Head>{losses ? `loss at ${stepName(losses.last)}` : 'loss'}</Head>
                  {formatLoss(losses ? losses.atLast[i] : latest)}
                  {wentOn ? <Below>{`${formatLoss(latest)} at ${stepName(run.stepsDone - 1)}`}</Below> : null}
                </td>
                <td className={`${cell} col-start-3 row-start-1 text-right md:w-44 md:min-w-36 md:text-left lg:pl-8`}>
                  {run.state === 'running' || run.state === 'stopping' ? (
                    <Progress label={`Progress of ${run.name}`} done={run.stepsDone} of={run.steps} />
                  ) : (
                    <span title={run.reason}>
                      <StateChip state={run.state} />
                    </span>
                  )}
                </td>
                <td className={`${cell} col-span-3 row-start-3 truncate md:pr-4 lg:pl-8`}>
                  <Link href={`/runs/${encodeURIComponent(run.id)}`} className="text-accent hover:underline">
                    {run.name}
                  </Link>
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** A column's head, where a phone shows no row of heads. */
function Head({ children }: { children: ReactNode }) {
  return <span className="caps block md:hidden">{children}</span>;
}

/** A second line in a cell. */
function Below({ children, phone = false, title }: { children: ReactNode; phone?: boolean; title?: string }) {
  return (
    <span title={title} className={`block text-xs font-normal text-faint ${phone ? 'md:hidden' : ''}`}>
      {children}
    </span>
  );
}
