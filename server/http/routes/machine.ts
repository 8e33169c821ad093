import { readFileSync } from 'node:fs';
import type { z } from 'zod';
import { StudioError } from '../../../engine/errors.ts';
import { readCalibration } from '../../../engine/node/calibration-store.ts';
import { freeMemoryBytes } from '../../../engine/node/shared-segment.ts';
import type { DeviceList } from '../../contract.ts';
import type { Route } from '../router.ts';
import type { Services } from '../services.ts';

const { version } = JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')) as {
  version: string;
};

/** What this machine has, and whether the studio is well. */
export function machineRoutes({ adapters, scheduler, calibration, store, folder }: Services): Route[] {
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
        const body: z.infer<typeof DeviceList> = {
          adapters: [],
          freeHostBytes: freeMemoryBytes(),
          error: null,
        };
        try {
          for (const entry of await adapters.get()) {
            const { id, name, pciId, software, tensorCores, features, limits, deviceMemoryBytes } = entry;
            const busy = scheduler.held.get(id) ?? null;
            const rates = await readCalibration(folder.root, entry);
            body.adapters.push({
              id,
              name,
              pciId,
              software,
              tensorCores,
              features: [...features],
              limits: { ...limits },
              busy,
              memoryBytes: software ? null : deviceMemoryBytes,
              rates,
              calibration: calibration.stateOf(id),
            });
          }
        } catch (error) {
          if (!(error instanceof StudioError)) throw error;
          body.error = error.message;
        }
        return { status: 200, body };
      },
    },
    {
      method: 'POST',
      path: '/devices/:id/calibrate',
      async handle({ params }) {
        await calibration.ask(params.id);
        return { status: 202, body: calibration.stateOf(params.id) };
      },
    },
  ];
}
