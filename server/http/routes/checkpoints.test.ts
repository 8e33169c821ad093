import { PassThrough } from 'node:stream';
import { expect, it } from 'vitest';
import { BroughtCheckpoints } from '../../checkpoints/brought-checkpoints.ts';
import type { ApiRequest } from '../router.ts';
import type { Services } from '../services.ts';
import type { CheckpointPlace } from './checkpoint-places.ts';
import { checkpointRoutes } from './checkpoints.ts';

it('a checkpoint that is deleted once it was found is not found', async () => {
  const folder = { root: '/nowhere', uploads: '/nowhere/uploads' } as Services['folder'];
  const found = { name: 'gone', path: '/nowhere/gone', kind: 'full', step: null, sha256: null, saved: 'gone' } as const;
  const place: CheckpointPlace = {
    address: '/gone',
    find: async () => ({ ...found, origin: () => Promise.reject(new Error('of none')) }),
    locate: async () => found.path,
  };
  const routes = checkpointRoutes({ folder } as Services, new BroughtCheckpoints(folder), [place]);
  for (const [path, query] of [
    ['/gone', ''],
    ['/gone', 'as=safetensors'],
    ['/gone/details', ''],
    ['/gone/tensor', 'tensor=x'],
  ]) {
    const route = routes.find((one) => one.method === 'GET' && one.path === path);
    const request = {
      params: {},
      query: new URLSearchParams(query),
      response: new PassThrough() as unknown,
    } as ApiRequest;
    await expect(route?.handle(request), `${path}?${query}`).rejects.toMatchObject({ code: 'not-found' });
  }
});
