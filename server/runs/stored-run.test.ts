import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import { openDataFolder } from '../data-folder.ts';
import { openDb } from '../db/client.ts';
import { migrate } from '../db/migrate.ts';
import { openTestStudio, type TestStudio } from '../fixtures/test-studio.ts';
import { RunStore } from './run-store.ts';

let place: string;
let test: TestStudio;

/** Queued by an older build, which took what this one refuses. */
const stored = {
  'mhx000000-000000': { name: 'ok \u001b[2J\u0007' },
  'mhx000001-000000': { name: 'ok', devices: 0 },
};

beforeEach(async () => {
  place = await mkdtemp(join(tmpdir(), 'stored-run-'));
  const { database, runs } = await openDataFolder(place);
  await migrate(database, fileURLToPath(new URL('../../prisma/migrations', import.meta.url)));
  const db = await openDb(database);
  const store = new RunStore(db);
  for (const [id, given] of Object.entries(stored)) {
    const config = { ...parseConfig({ trainer: { steps: 2 } }), ...given };
    await mkdir(join(runs, id));
    await store.create({ id, name: given.name, group: null, reason: '', config });
  }
  await db.close();
  test = await openTestStudio({ dataFolder: place });
});
afterEach(async () => {
  await test.close();
  await rm(place, { recursive: true });
});

it('runs that an older build stored are listed, shown and run, or fail by what is refused of them; the others go on', async () => {
  const { api } = test;
  const [controls, invalid] = Object.keys(stored);
  await api.until(controls, 'finished');
  const refused = /devices/;
  const failed = await api.until(invalid, 'failed');
  expect(failed.error).toMatchObject({ code: 'invalid-config', message: expect.stringMatching(refused) });
  const { id } = await api.create({ name: 'ok', trainer: { steps: 2 } });
  await api.until(id, 'finished');

  const { status, body } = await api.get('/runs');
  expect(status).toBe(200);
  expect((body as { runs: { name: string }[] }).runs.map(({ name }) => name).sort()).toEqual(['ok', 'ok', 'ok ?[2J?']);
  for (const path of [`/runs/${controls}`, `/runs/${controls}/config`, `/runs/${controls}/events`, `/runs/${invalid}`])
    expect((await api.get(path)).status, path).toBe(200);
  expect(await api.get(`/runs/${invalid}/config`)).toMatchObject({
    status: 400,
    body: { error: { code: 'invalid-config' } },
  });
  expect((await api.get(`/compare?ids=${controls},${id}`)).status).toBe(200);
});
