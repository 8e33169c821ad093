import { StudioError } from '../../../engine/errors.ts';
import { quickStartConfigs } from '../../../engine/quick-start.ts';
import { CreateRun, type QuickStart, type Run } from '../../contract.ts';
import { newRunId } from '../../runs/run-id.ts';
import { configOf, toRun, toSummary } from '../../runs/run-store.ts';
import { parseSubmittedConfig } from '../../runs/submitted-config.ts';
import { readJson } from '../body.ts';
import { queryInteger, type Route } from '../router.ts';
import type { Services } from '../services.ts';

const MAX_QUEUED = 1000;

/** Queueing, looking at, stopping and deleting runs. */
export function runRoutes({ store, scheduler, folder, reserve }: Services): Route[] {
  const whole = async (id: string): Promise<Run> => toRun(await store.get(id), await store.checkpoints(id));

  const submit = async (input: unknown, group: string | null) => {
    const config = await parseSubmittedConfig(input, folder.root);
    if ((await store.count(['queued'])) >= MAX_QUEUED)
      throw new StudioError('conflict', `${MAX_QUEUED} runs wait already. Stop some of them, or wait.`);
    await reserve.refuseWhenFull();
    return scheduler.submit(config, group);
  };

  return [
    {
      method: 'GET',
      path: '/runs',
      async handle({ query }) {
        const limit = queryInteger(query, 'limit', 1000, { min: 1, max: 10_000 });
        const offset = queryInteger(query, 'offset', 0, { min: 0, max: 1e9 });
        const { rows, total } = await store.list(limit, offset);
        return { status: 200, body: { runs: rows.map(toSummary), total } };
      },
    },
    {
      method: 'POST',
      path: '/runs',
      async handle({ raw }) {
        const { config, group } = await readJson(raw, CreateRun);
        return { status: 201, body: toRun(await submit(config, group), []) };
      },
    },
    {
      method: 'POST',
      path: '/quick-start',
      async handle() {
        const group = `quick-start-${newRunId()}`;
        const ddp = await submit(quickStartConfigs.ddp, group);
        const fullShard = await submit(quickStartConfigs.fullShard, group);
        const body: QuickStart = { group, runs: [toSummary(ddp), toSummary(fullShard)] };
        return { status: 201, body };
      },
    },
    {
      method: 'GET',
      path: '/runs/:id',
      handle: async ({ params }) => ({ status: 200, body: await whole(params.id) }),
    },
    {
      method: 'GET',
      path: '/runs/:id/config',
      handle: async ({ params }) => ({ status: 200, body: configOf(await store.get(params.id)) }),
    },
    {
      method: 'POST',
      path: '/runs/:id/stop',
      async handle({ params }) {
        await scheduler.stop(params.id);
        return { status: 202, body: await whole(params.id) };
      },
    },
    {
      method: 'POST',
      path: '/runs/:id/save',
      async handle({ params }) {
        await scheduler.save(params.id);
        return { status: 202, body: await whole(params.id) };
      },
    },
    {
      method: 'DELETE',
      path: '/runs/:id',
      async handle({ params }) {
        await scheduler.remove(params.id);
        return { status: 204 };
      },
    },
  ];
}
