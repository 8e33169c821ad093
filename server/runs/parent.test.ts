import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import { openDb } from '../db/client.ts';
import { migrate } from '../db/migrate.ts';
import { openTestStudio } from '../fixtures/test-studio.ts';
import { RunStore, toRun } from './run-store.ts';

it('a run knows the run whose checkpoint it goes on from, or whose weights it starts with', async () => {
  const place = await mkdtemp(join(tmpdir(), 'parent-'));
  const file = join(place, 'studio.db');
  await migrate(file, fileURLToPath(new URL('../../prisma/migrations', import.meta.url)));
  const db = await openDb(file);
  const store = new RunStore(db);
  const own = 'runs/mhx000000-000000/checkpoints/step-000001.ckpt';
  const found: [object, string | null][] = [
    [{ checkpoint: { resume: own } }, 'mhx000000-000000'],
    [{ init: { from: own } }, 'mhx000000-000000'],
    [{ checkpoint: { resume: 'uploads/a/checkpoints/b.ckpt' } }, null],
    [{ checkpoint: { resume: 'runs/else/checkpoints/b.ckpt' } }, null],
    [{}, null],
  ];
  for (const [n, [input, parent]] of found.entries()) {
    const id = `mhx000001-00000${n}`;
    const row = await store.create({ id, name: 'a', group: null, reason: '', config: parseConfig(input) });
    expect(toRun(row, []).parent, JSON.stringify(input)).toBe(parent);
  }
  const latest = { name: 'a', group: null, reason: '', config: parseConfig({ checkpoint: { resume: 'latest' } }) };
  const row = await store.create({ id: 'mhx000002-000000', ...latest });
  expect(toRun(row, []).parent).toBeNull();
  await store.change(row.id, ['queued'], { latest: own });
  expect(toRun(await store.get(row.id), []).parent).toBe('mhx000000-000000');
  await db.close();
  await rm(place, { recursive: true });
});

it('however the checkpoint is named: latest, or by a path with turns', async () => {
  const { api, dataFolder, close } = await openTestStudio();
  try {
    const parent = await api.create({ name: 'ok', trainer: { steps: 2 } });
    const [{ path, sha256 }] = (await api.until(parent.id, 'finished')).checkpoints;
    await writeFile(join(dataFolder, `${path}.sha256`), `${sha256}  step\n`);
    for (const resume of ['latest', `./runs/../runs//${path.slice('runs/'.length)}`]) {
      const { id } = await api.create({ name: 'ok', trainer: { steps: 4 }, checkpoint: { resume } });
      const run = await api.until(id, 'finished');
      expect(run.parent, resume).toBe(parent.id);
      expect(run.config).toMatchObject({ checkpoint: { resume: resume === 'latest' ? resume : path } });
      expect((await api.ask('DELETE', `/runs/${id}`)).status).toBe(204);
    }
  } finally {
    await close();
  }
});
