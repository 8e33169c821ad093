import type { WireNumber } from '../../../engine/trainer/events.ts';
import type { Comparison } from '../../contract.ts';
import { differingPaths } from '../../runs/compare-configs.ts';
import { byCategoryOf, type RunStore, toSummary } from '../../runs/run-store.ts';
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
        const runs: Comparison['runs'] = [];
        for (const row of rows) {
          const run = toSummary(row);
          const stride = Math.max(1, Math.ceil(run.stepsDone / MAX_POINTS));
          runs.push({
            run,
            config: row.config,
            peakBytes: run.peakBytes,
            liveBytes: row.liveBytes === null ? null : Number(row.liveBytes),
            byCategory: byCategoryOf(row),
            iterationMs: run.iterationMs,
            lossMeans: await lossMeans(store, row.id, stride),
            lossStride: stride,
          });
        }
        const body: Comparison = { runs, differing: differingPaths(rows.map(({ config }) => config)) };
        return { status: 200, body };
      },
    },
  ];
}

/** The mean loss of every `stride`-th step, in order. Every rank reports the same mean; the first one counts. */
async function lossMeans(store: RunStore, runId: string, stride: number): Promise<WireNumber[]> {
  const losses: WireNumber[] = [];
  let last = -1;
  for await (const event of store.eventsAfter(runId, 0)) {
    if (event.event !== 'step' || event.step <= last) continue;
    last = event.step;
    if (event.step % stride === 0) losses.push(event.lossMean);
  }
  return losses;
}
