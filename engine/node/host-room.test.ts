import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { parseConfig } from '../config.ts';
import { compileRanks, smallModel } from '../schedule/fixtures/small-runs.ts';
import { checkHostRoom } from './host-room.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'host-room-'));
});
afterEach(async () => {
  vi.restoreAllMocks();
  await rm(folder, { recursive: true, force: true });
});

const config = parseConfig({ model: smallModel, devices: 2, strategy: 'fsdp_cpu_offload' });
const check = (timeoutMs = 5000) =>
  compileRanks({ config: { devices: 2, strategy: 'fsdp_cpu_offload' } }).map(
    (run) => () => checkHostRoom({ config, run, software: false, alone: false, sharedFolder: folder, timeoutMs }),
  );

it('lets all ranks on where there is room', async () => {
  const [first, second] = check();
  await Promise.all([second(), first()]);
});

it('refuses on rank 0 by the setting, and the others say so too', async () => {
  vi.spyOn(process, 'availableMemory').mockReturnValue(0);
  const [first, second] = check();
  const results = await Promise.allSettled([second(), first()]);
  const errors = results.map((r) => (r.status === 'rejected' ? r.reason : null));
  expect(errors[1]).toMatchObject({ code: 'out-of-memory', message: expect.stringMatching(/^strategy.cpuOffload: /) });
  expect(errors[0]).toMatchObject({ code: 'peer-lost', message: expect.stringContaining(errors[1].message) });
});

it('does not wait for ever', async () => {
  await expect(check(30)[1]()).rejects.toMatchObject({ code: 'timeout' });
});
