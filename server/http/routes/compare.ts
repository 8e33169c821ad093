import type { WireNumber } from '../../../engine/trainer/events.ts';
import type { Comparison } from '../../contract.ts';
import { differingPaths } from '../../runs/compare-configs.ts';
import { byCategoryOf, configOf, type RunRow, type RunStore, toSummary } from '../../runs/run-store.ts';
import { commonMedians, StepTimes } from '../../runs/step-times.ts';
import { RequestError } from '../errors.ts';
import type { Route } from '../router.ts';
import type { Services } from '../services.ts';

const MAX_RUNS = 50;
const MAX_POINTS = 5000;

/** Several runs side by side. */
export function compareRoutes({ store }: Services): Route[] {
  return [
    {
      method: 'GET',
      path: '/compare',
      async handle({ query }) {
        const ids = [...new Set((query.get('ids') ?? '').split(',').filter((id) => id !== ''))];
        if (ids.length === 0 || ids.length > MAX_RUNS)
          throw new RequestError('bad-request', `ids names 1 to ${MAX_RUNS} runs, with commas between them.`);
        const rows = await Promise.all(ids.map((id) => store.get(id)));
        const read: Awaited<ReturnType<typeof readSteps>>[] = [];
        for (const row of rows) read.push(await readSteps(store, row));
        const { medianMs, spread, steps } = commonMedians(read.map(({ times }) => times));
        const runs = rows.map((row, i): Comparison['runs'][number] => {
          const run = toSummary(row);
          return {
            run,
            config: row.config,
            peakBytes: run.peakBytes,
            liveBytes: row.liveBytes === null ? null : Number(row.liveBytes),
            byCategory: byCategoryOf(row),
            iterationMs: medianMs[i],
            iterationSpread: spread[i],
            lossMeans: read[i].losses,
            lossStride: read[i].stride,
            lossFrom: read[i].from,
          };
        });
        const body: Comparison = {
          runs,
          timedSteps: steps,
          differing: differingPaths(rows.map(({ config }) => config)),
        };
        return { status: 200, body };
      },
    },
  ];
}

/**
 * The steps of a run: their times, and the mean loss of every `stride`-th, in order. Every rank reports the same mean; the
 * first one counts.
 */
async function readSteps(store: RunStore, row: RunRow) {
  const stride = Math.max(1, Math.ceil(row.stepsDone / MAX_POINTS));
  const losses: WireNumber[] = [];
  let from: number | null = null;
  const times = new StepTimes(configOf(row).devices);
  let last = -1;
  for await (const event of store.eventsAfter(row.id, 0)) {
    if (event.event !== 'step') continue;
    times.add(event);
    if (event.step <= last) continue;
    last = event.step;
    if (event.step % stride !== 0) continue;
    from ??= event.step;
    losses.push(event.lossMean);
  }
  return { stride, losses, from: from ?? 0, times };
}
