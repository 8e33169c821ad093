import { readFileSync } from 'node:fs';
import type { z } from 'zod';
import { StudioError } from '../../../engine/errors.ts';
import { readCalibration } from '../../../engine/node/calibration-store.ts';
import type { DeviceList } from '../../contract.ts';
import type { Route } from '../router.ts';
import type { Services } from '../services.ts';

const { version } = JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')) as {
  version: string;
};

/** What this machine has, and whether the studio is well. */
export function machineRoutes({ adapters, scheduler, store, folder }: Services): Route[] {
  return [
    {
      method: 'GET',
      path: '/health',
      async handle() {
        await store.count(['queued']);
        return { status: 200, body: { status: 'ok', version } };
      },
    },
    {
      method: 'GET',
      path: '/devices',
      async handle() {
        const body: z.infer<typeof DeviceList> = { adapters: [], error: null };
        try {
          for (const entry of await adapters.get()) {
            const { id, name, pciId, software, features, limits } = entry;
            const busy = scheduler.held.get(id) ?? null;
            const rates = await readCalibration(folder.root, entry);
            body.adapters.push({
              id,
              name,
              pciId,
              software,
              features: [...features],
              limits: { ...limits },
              busy,
              rates,
            });
          }
        } catch (error) {
          if (!(error instanceof StudioError)) throw error;
          body.error = error.message;
        }
        return { status: 200, body };
      },
    },
  ];
}
