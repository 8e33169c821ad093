import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { whyNot } from '../../engine/node/errno.ts';
import { devices } from './devices.ts';
import { checkDataFolder } from './writable-folder.ts';

const { calibrateInChild } = vi.hoisted(() => ({ calibrateInChild: vi.fn() }));
vi.mock('../../engine/node/calibrate.ts', () => ({ calibrateInChild }));
vi.mock('../../engine/node/adapters.ts', () => ({ discoverAdapters: async () => [{ id: 'a', software: true }] }));

let place: string;
beforeEach(async () => {
  place = await mkdtemp(join(tmpdir(), 'writable-'));
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await rm(place, { recursive: true });
});

it('makes no folder where none can be made, and comes back', async () => {
  await expect(checkDataFolder('/proc/shard/data')).rejects.toMatchObject({ code: 'io' });
});

it('leaves nothing in a folder that takes files', async () => {
  await checkDataFolder(join(place, 'data'));
  expect(await readdir(join(place, 'data'))).toEqual([]);
});

it('devices --calibrate says that the data folder cannot be used before it measures', async () => {
  await writeFile(join(place, 'file'), '');
  vi.stubEnv('STUDIO_DATA', join(place, 'file', 'data'));
  await expect(devices(['--calibrate'])).rejects.toMatchObject({
    code: 'io',
    message: expect.stringMatching(/The data folder .*file\/data cannot be used: .* name another in STUDIO_DATA/),
  });
  expect(calibrateInChild).not.toHaveBeenCalled();
});

it('says why a folder takes nothing', () => {
  expect(whyNot('EROFS')).toContain('read-only');
  expect(whyNot('EACCES')).toContain('read-only');
  expect(whyNot('ENOSPC')).toContain('full');
});
