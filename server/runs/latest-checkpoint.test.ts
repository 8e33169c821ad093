import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import { referenceRun } from '../../engine/node/fixtures/train-run.ts';
import { withLatestCheckpoint } from './latest-checkpoint.ts';

const config = parseConfig({ ...referenceRun, checkpoint: { resume: 'latest' } });
let work: string;
beforeAll(async () => {
  work = await mkdtemp(join(tmpdir(), 'latest-'));
});
afterAll(() => rm(work, { recursive: true }));

/** A run's folder with whole checkpoints of these names. */
async function runWith(run: string, ...names: readonly string[]): Promise<string> {
  const checkpoints = join(work, run, 'checkpoints');
  await mkdir(checkpoints, { recursive: true });
  for (const name of names) {
    await writeFile(join(checkpoints, name), 'whole');
    await writeFile(join(checkpoints, `${name}.sha256`), `${'ab'.repeat(32)}  ${name}\n`);
  }
  return join(work, run);
}

const latestOf = async (...runs: readonly string[]) =>
  (await withLatestCheckpoint(config, runs, 'here')).checkpoint.resume;

it('is the last that training can go on from, of the first run that has one', async () => {
  const older = await runWith('older', 'step-000090.ckpt');
  const run = await runWith('run', 'step-000010.ckpt', 'step-000002.ckpt', 'step-000030.safetensors');
  const none = await runWith('none', 'step-000050.safetensors');
  expect(await latestOf(none, run, older)).toBe(join(run, 'checkpoints', 'step-000010.ckpt'));
  await expect(latestOf(none)).rejects.toMatchObject({ code: 'not-found' });
});
