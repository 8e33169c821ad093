import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { RunEvent } from '../engine/trainer/events.ts';
import { agrees, rowLines } from './fabric-table.ts';
import { figuresOf } from './fabric-table-ours.ts';
import { batchesOf, rowsOf } from './fabric-table-rows.ts';
import { TorchRanks } from './fabric-table-torch.ts';
import { parseGpus, parseProcesses } from './gpu-memory.ts';

const MiB = 2 ** 20;
const place = (pciId: string) => ({ name: 'NVIDIA H200', pciId, software: false });
const [a, b] = ['0000:1b:00.0', '0000:43:00.0'];

function events(places: readonly string[]): RunEvent[] {
  const step = (rank: number, n: number) => ({
    event: 'step',
    rank,
    step: n,
    iterationMs: 100 * (n + 1),
    memory: { peakBytes: (1000 + rank) * MiB, liveBytes: 900 * MiB },
  });
  return [
    { event: 'start', adapters: places.map(place), predicted: { estimateMs: 450 } },
    ...[0, 1, 2, 3, 4].flatMap((n) => [step(0, n), step(1, n)]),
    { event: 'end', status: 'finished' },
  ] as unknown as RunEvent[];
}

test('a row counts the steps after the third of rank 0', () => {
  const figures = figuresOf(events([a, b]), new Map([[b, 1100]]));
  expect(figures).toMatchObject({ ms: [400, 500], liveMiB: 900, reservedMiB: 1000, predictedMs: 450 });
});

test('what was planned for the fullest GPU is beside what the driver says of that GPU', () => {
  expect(
    figuresOf(
      events([a, b]),
      new Map([
        [a, 7],
        [b, 1100],
      ]),
    ),
  ).toMatchObject({ plannedMiB: 1001, driverMiB: 1100 });
  expect(figuresOf(events([a, a]), new Map([[a, 2300]]))).toMatchObject({ plannedMiB: 2001, driverMiB: 2300 });
  expect(figuresOf(events([a, b]), new Map()).driverMiB).toBeNull();
});

test('a run that did not finish has no figures', () => {
  const cut = [...events([a, b]).slice(0, -1), { event: 'end', status: 'failed' } as unknown as RunEvent];
  expect(() => figuresOf(cut, new Map())).toThrow(/did not finish/);
});

test('the driver agrees within a tenth and 600 MiB', () => {
  expect(agrees(1000, 1700)).toBe(true);
  expect(agrees(1000, 1701)).toBe(false);
  expect(agrees(10_000, 8399)).toBe(false);
});

test('a GPU is named as Vulkan names it', () => {
  expect(parseGpus('00000000:1B:00.0, 512\n00000000:43:00.0, 1\n')).toEqual([
    { pciId: a, usedMiB: 512 },
    { pciId: b, usedMiB: 1 },
  ]);
});

test('a process is listed with its GPU; what the driver cannot say of it is left out', () => {
  expect(parseProcesses('00000000:1B:00.0, 4711, 8005\n00000000:43:00.0, 4712, [N/A]\n')).toEqual([
    { pciId: a, pid: 4711, usedMiB: 8005 },
  ]);
  expect(parseProcesses('')).toEqual([]);
});

test('rows are found by name, and their batches have their shape', () => {
  const [mixed, full] = rowsOf(['single-512-mixed', 'full_shard']);
  expect(mixed).toMatchObject({ torch: 'single', devices: 1, precision: '16-mixed' });
  const [step] = batchesOf(mixed, 2, 100) as { input: number[][] }[][];
  expect([step.length, step[0].input.length, step[0].input[0].length]).toEqual([1, 8, 512]);
  expect((batchesOf(full, 2, 100) as unknown[][]).map((ranks) => ranks.length)).toEqual([2, 2]);
  expect(() => rowsOf(['ddp', 'zero3'])).toThrow(/no row zero3; there are single, /);
});

/** Speaks as fabric-table-torch.py does; `broken` ends it, `mute` says nothing. */
const FAKE = `
import { createInterface } from 'node:readline';
console.log('imports print this and that');
console.log('READY 2');
let rows = 0;
for await (const line of createInterface({ input: process.stdin })) {
  const [port, strategy, ...rest] = line.split(' ');
  rows++;
  if (strategy === 'broken') {
    console.error('CUDA out of memory, rank ' + process.env.LOCAL_RANK);
    process.exit(1);
  }
  if (strategy === 'mute') continue;
  const figures = { iteration_s: rows / 10, min_s: 0.05, max_s: 2, peak_allocated_MiB: rest.length, peak_reserved_MiB: 7 };
  if (process.env.LOCAL_RANK === '0') console.log('RESULT ' + JSON.stringify(figures));
  console.log('DONE');
}
`;
let folder: string;
beforeAll(() => {
  folder = mkdtempSync(path.join(tmpdir(), 'fabric-table-'));
  writeFileSync(path.join(folder, 'fake.mjs'), FAKE);
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const fake = (rowMs = 60_000) => ({
  program: process.execPath,
  args: [path.join(folder, 'fake.mjs')],
  startMs: 60_000,
  rowMs,
});

test("one process a rank runs Fabric's rows in turn, and new ones do after a row that failed", async () => {
  const torch = (await TorchRanks.open(fake(), 2))!;
  try {
    expect(torch.gpus).toBe(2);
    const row = (name: string, devices: number) => torch.row([name, '--steps', '8'], devices);
    expect(await row('ddp', 2)).toEqual({ ms: [100, 50, 2000], liveMiB: 2, reservedMiB: 7 });
    expect((await row('single', 1)).ms[0]).toBe(200);
    await expect(row('broken', 2)).rejects.toThrow(/ended with 1: CUDA out of memory, rank/);
    expect((await row('ddp', 2)).ms[0]).toBe(100);
  } finally {
    torch.close();
  }
});

test('a rank that says nothing more is not waited for', async () => {
  const impatient = (await TorchRanks.open(fake(100), 1))!;
  await expect(impatient.row(['mute'], 1)).rejects.toThrow(/longer than 0.1 s/);
  impatient.close();
});

test('without python, torch or a GPU there are no rows of Fabric', async () => {
  expect(await TorchRanks.open({ ...fake(), program: '/nowhere/python3' }, 1)).toBeNull();
  expect(await TorchRanks.open({ ...fake(), args: ['-e', 'process.exit(1)'] }, 1)).toBeNull();
  const cpuOnly = "console.log('READY 0'); setInterval(() => {}, 1000)";
  expect(await TorchRanks.open({ ...fake(), args: ['-e', cpuOnly] }, 2)).toBeNull();
});

test('a side that failed says why in its row, beside the figures of the other', () => {
  const [row] = rowsOf(['ddp']);
  const own = { ...figuresOf(events([a, b]), new Map([[b, 1100]])), ms: [440, 450, 460] };
  const ours = { figures: [own], failed: null, seconds: 12 };
  const theirs = { figures: [{ ms: [900], liveMiB: 2000, reservedMiB: 2500 }], failed: null, seconds: 20.4 };
  const cells = (text: string) => text.trim().split(/\s+/);
  const whole = rowLines(row, ours, theirs);
  expect(whole.slice(0, 3).map(cells)).toEqual([
    ['ddp', 'torch', '900.0', '900.0', '900.0', '2000', '2500'],
    ['ddp', 'ours', '450.0', '440.0', '460.0', '450', '1.000', '900', '1000', '1001', '1100', 'agrees'],
    ['ddp', 'ratio', '0.500', '0.500'],
  ]);
  expect(whole[3].trim()).toBe(`ranks on ${a} and ${b}, torch took 20 s, ours took 12 s`);
  const half = rowLines(row, ours, { figures: [], failed: 'a rank ended with 1: no NCCL\n', seconds: 3 });
  expect(cells(half[0]).slice(0, 3)).toEqual(['ddp', 'ours', '450.0']);
  expect(half[1]).toMatch(/^ddp +torch failed: a rank ended with 1: no NCCL$/);
});
