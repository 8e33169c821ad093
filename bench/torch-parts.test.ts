import { writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { saidIn, TorchParts } from './torch-parts.ts';

let folder: string;
let speaker: string;

/** Speaks as torch-parts.py does: asked for "rank", it took 10 ms a rank; for "broken", it cannot; for "end", it ends. */
beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'torch-parts-'));
  speaker = path.join(folder, 'speaker.mjs');
  writeFileSync(
    speaker,
    `import { createInterface } from 'node:readline';
const rank = Number(process.env.RANK ?? 0);
const gpus = process.env.CUDA_VISIBLE_DEVICES === '' ? 0 : Number(process.env.GPUS ?? 1);
console.log('a warning');
console.log('READY ' + JSON.stringify({ version: '2.11', gpus, on: 'H200', backend: 'none' }));
for await (const line of createInterface(process.stdin)) {
  const { ask } = JSON.parse(line);
  if (ask === 'end') { console.error('it ends'); process.exit(1); }
  console.log(ask === 'broken' ? 'PROBLEM "RuntimeError: out of memory"' : 'ANSWER ' + JSON.stringify({ ms: [10 * (rank + 1), 30], how: 'wall' }));
}`,
  );
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const open = (setting: { gpu: boolean; ranks?: number }) =>
  TorchParts.open({ ...setting, program: [process.execPath, speaker] });

test('lines that are no part of the talk are passed over, and a problem is an error', () => {
  expect(saidIn('a warning', 'ANSWER')).toBeNull();
  expect(saidIn('READY {"gpus":1}', 'ANSWER')).toBeNull();
  expect(saidIn('ANSWER {"ms":[1]}', 'ANSWER')).toEqual({ ms: [1] });
  expect(() => saidIn('PROBLEM "no GPU"', 'ANSWER')).toThrow('no GPU');
});

test('of several ranks the slowest counts', async () => {
  const torch = await open({ gpu: true, ranks: 2 });
  expect(await torch.ask({ ask: 'rank' })).toEqual({ ms: [20, 30], how: 'wall' });
  torch.close();
});

test('what cannot be measured has a reason, and more may be asked', async () => {
  const torch = await open({ gpu: true });
  await expect(torch.ask({ ask: 'broken' })).rejects.toThrow('out of memory');
  expect((await torch.ask({ ask: 'rank' })).ms).toEqual([10, 30]);
  await expect(torch.ask({ ask: 'end' })).rejects.toThrow(/it ends|torch ended/);
  torch.close();
});

test('without python3, and without a GPU where one is asked for, there is no torch', async () => {
  await expect(TorchParts.open({ gpu: false, program: [path.join(folder, 'none')] })).rejects.toThrow('ENOENT');
  const torch = await open({ gpu: false });
  expect(torch.place.gpus).toBe(0);
  torch.close();
  process.env.GPUS = '0';
  await expect(open({ gpu: true })).rejects.toThrow('sees no GPU');
  delete process.env.GPUS;
});
