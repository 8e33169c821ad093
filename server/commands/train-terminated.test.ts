import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { listCheckpoints } from '../../engine/node/checkpoint-list.ts';
import { verifyCheckpoint } from '../../engine/node/checkpoint-verify.ts';

let folder: string;
let child: ChildProcess | null = null;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'terminated-'));
});
afterEach(async () => {
  child?.kill('SIGKILL');
  await rm(folder, { recursive: true, force: true });
});

/** `studio train`, told by a signal once it has made three steps. Returns its exit code and its last event. */
async function trainUntil(signal: NodeJS.Signals) {
  const batch = { input: [1, 2, 3, 9], target: [2, 3, 1, 9] };
  await writeFile(join(folder, 'batches.json'), JSON.stringify(Array.from({ length: 5000 }, () => [batch, batch])));
  const config = {
    name: 'told to end',
    model: { kind: 'demo-transformer', vocabSize: 10, ninp: 8, nhead: 2, nhid: 8, nlayers: 1 },
    data: { kind: 'batches', path: join(folder, 'batches.json') },
    devices: 2,
    adapter: 'interpreter',
    trainer: { steps: 5000 },
    checkpoint: { atEnd: false },
  };
  await writeFile(join(folder, 'config.json'), JSON.stringify(config));
  const [cli, report] = [fileURLToPath(new URL('../cli.ts', import.meta.url)), join(folder, 'report.jsonl')];
  const args = ['train', join(folder, 'config.json'), '--out', join(folder, 'run'), '--report', report];
  child = spawn(process.execPath, ['--import', 'tsx', cli, ...args], { stdio: 'ignore' });
  const exit = once(child, 'exit');
  const lines = async () => (await readFile(report, 'utf8').catch(() => '')).split('\n').filter((line) => line !== '');
  while (!(await lines()).some((line) => line.includes('"step":3,')) && child.exitCode === null) await sleep(20);
  child.kill(signal);
  const [code] = await exit;
  return { code, end: JSON.parse((await lines()).at(-1) as string) };
}

it('SIGTERM saves a checkpoint, though none was asked for, and stops', async () => {
  const { code, end } = await trainUntil('SIGTERM');
  const listed = await listCheckpoints(join(folder, 'run', 'checkpoints'));
  expect([code, end.status, listed.length]).toEqual([1, 'stopped', 1]);
  expect(end.checkpoints).toMatchObject([{ path: listed[0].path, step: listed[0].step }]);
  expect(listed[0].step).toBeGreaterThanOrEqual(4);
  expect((await verifyCheckpoint(listed[0].path)).digests).toBe(true);
});

it('SIGINT, a person at the keyboard, stops and saves what is configured: nothing here', async () => {
  const { code, end } = await trainUntil('SIGINT');
  expect([code, end.status, end.checkpoints]).toEqual([1, 'stopped', []]);
});
