import { join } from 'node:path';
import { StudioError } from '../../../engine/errors.ts';
import { listTraces, readTraces } from '../../../engine/node/trace-files.ts';
import { chromeTrace } from '../../../engine/trainer/chrome-trace.ts';
import type { RankTrace } from '../../../engine/trainer/rank-trace.ts';
import type { Trace, TraceList } from '../../contract.ts';
import { configOf, toRun } from '../../runs/run-store.ts';
import { RequestError } from '../errors.ts';
import { DATA_POLICY } from '../headers.ts';
import type { ApiRequest, Route } from '../router.ts';
import type { Services } from '../services.ts';

/** Traces of steps: asking a run for one, which there are, and each to draw or to download. */
export function traceRoutes({ store, scheduler, folder }: Services): Route[] {
  const place = async (id: string) => {
    const { devices } = configOf(await store.get(id));
    return { runFolder: join(folder.runs, id), world: devices };
  };

  return [
    {
      method: 'POST',
      path: '/runs/:id/trace',
      async handle({ params: { id } }) {
        await scheduler.trace(id);
        return { status: 202, body: toRun(await store.get(id), await store.checkpoints(id)) };
      },
    },
    {
      method: 'GET',
      path: '/runs/:id/traces',
      async handle({ params: { id } }) {
        const { runFolder, world } = await place(id);
        const body: TraceList = { steps: await listTraces(runFolder, world) };
        return { status: 200, body };
      },
    },
    {
      method: 'GET',
      path: '/runs/:id/traces/:step',
      async handle(request) {
        const { id, step } = request.params;
        const { runFolder, world } = await place(id);
        if (!/^\d{1,8}$/.test(step)) throw new StudioError('not-found', `There is no step ${step}.`);
        const ranks = await readTraces(runFolder, world, Number(step));
        const as = request.query.get('as');
        if (as === 'chrome') return download(request, `${id}-step-${step}-trace.json`, ranks);
        if (as !== null) throw new RequestError('bad-request', 'as is chrome, or left out for the ranks as they are.');
        const body: Trace = { ranks };
        return { status: 200, body };
      },
    },
  ];
}

function download({ raw, response }: ApiRequest, name: string, ranks: readonly RankTrace[]): 'streamed' {
  const text = Buffer.from(JSON.stringify(chromeTrace(ranks)));
  response.writeHead(200, {
    'Content-Type': 'application/json; charset=utf-8',
    'Content-Length': text.length,
    'Content-Disposition': `attachment; filename="${name}"`,
    'Content-Security-Policy': DATA_POLICY,
    'Cache-Control': 'no-store',
  });
  response.end(raw.method === 'HEAD' ? undefined : text);
  return 'streamed';
}
