import { expect, test } from 'vitest';
import type { RunEvent } from '../engine/trainer/events.ts';
import { agrees, figuresOf } from './fabric-table.ts';
import { parseGpus } from './gpu-memory.ts';

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
