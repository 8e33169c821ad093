import { expect, test } from 'vitest';
import { parseConfig } from '../config.ts';
import { buildModel } from '../model/build-model.ts';
import { type CompiledRun, compileRun } from '../schedule/compile.ts';
import { liveBytes, sumCategories } from '../schedule/memory.ts';
import { builtInProfiles } from '../schedule/profile.ts';
import type { MeasuredMemory } from '../schedule/rank-engine.ts';
import { CATEGORIES } from '../schedule/schedule.ts';
import { memoryStats } from './memory-stats.ts';
import { memorySummary } from './memory-summary.ts';
import type { Stat } from './meter.ts';

const profile = builtInProfiles.interpreter;
const tiny = { kind: 'demo-transformer', vocabSize: 21, ninp: 8, nhead: 2, nhid: 12, nlayers: 1 };
/** Its embedding is in the large pool. */
const wide = { ...tiny, vocabSize: 40_000 };

function compiled(config: object, shapes = [{ batch: 1, tokens: 5 }]): CompiledRun {
  const parsed = parseConfig({ model: tiny, ...config });
  const model = buildModel(parsed.model, null);
  return compileRun({ config: parsed, model, shapes, rank: 0, profile });
}

function measuredOf(run: CompiledRun): MeasuredMemory {
  const live = run.steps.flatMap(({ schedule }) => liveBytes(schedule));
  const byCategory = live.reduce((a, b) => (sumCategories(b) > sumCategories(a) ? b : a));
  const { reservedBytes } = run.memory;
  const reserved = { currentBytes: reservedBytes, peakBytes: reservedBytes };
  return { ...reserved, liveBytes: sumCategories(byCategory), byCategory, hostBytes: 0, allocRetries: 3, ooms: 0 };
}

const numbers = ({ current, peak, allocated, freed }: Stat) => [current, peak, allocated, freed];
const sum = (values: readonly number[]) => values.reduce((total, value) => total + value, 0);

test.each([
  ['DDP', { devices: 2, strategy: 'ddp' }],
  ['FULL_SHARD', { devices: 2, strategy: 'fsdp' }],
  ['FULL_SHARD on 3 ranks, gathering on demand', { devices: 3, strategy: { kind: 'fsdp', backwardPrefetch: null } }],
  ['FULL_SHARD without limit', { devices: 2, strategy: { kind: 'fsdp', limitAllGathers: false } }],
  ['CPU offload', { devices: 2, strategy: 'fsdp_cpu_offload' }],
  ['one rank', { devices: 1, strategy: 'fsdp' }],
  ['DDP with large tensors', { devices: 2, strategy: 'ddp', model: wide }],
])('%s: the numbers are those of the schedule and of the buffers', (_, config) => {
  const run = compiled(config);
  const measured = measuredOf(run);
  const stats = memoryStats(run, [4], measured);
  const { tensors, steps } = run.steps[0].schedule;
  const state = tensors.filter((t) => t.state && t.space !== 'host');
  const stateBytes = sum(state.map((t) => t.bytes));
  const created = steps.flatMap((s) => s.creates);
  const createdBytes = sum(created.map((id) => tensors[id].bytes));

  expect(numbers(stats.tensorBytes.all)).toEqual([
    stateBytes,
    measured.liveBytes,
    stateBytes + 4 * createdBytes,
    4 * createdBytes,
  ]);
  const { current, allocated, freed } = stats.tensors.all;
  expect([current, allocated, freed]).toEqual([state.length, state.length + 4 * created.length, 4 * created.length]);

  const { reservedBytes, slabs } = run.memory;
  expect(numbers(stats.reservedBytes.all)).toEqual([reservedBytes, reservedBytes, reservedBytes, 0]);
  expect(numbers(stats.buffers.all)).toEqual([slabs.length, slabs.length, slabs.length, 0]);
  expect(stats.freeBytes.all.current).toBe(reservedBytes - stateBytes);
  expect(stats.freeBytes.all.peak).toBe(reservedBytes - stateBytes);

  const perStep = liveBytes({ tensors, steps });
  for (const category of CATEGORIES)
    expect(stats.categories[category].peak).toBe(Math.max(...perStep.map((bytes) => bytes[category])));
  for (const column of ['current', 'allocated', 'freed'] as const)
    expect(sum(CATEGORIES.map((c) => stats.categories[c][column]))).toBe(stats.tensorBytes.all[column]);

  const { categories, ...pooled } = stats;
  for (const { all, large, small } of Object.values(pooled))
    for (const column of ['current', 'allocated', 'freed'] as const)
      expect(large[column] + small[column]).toBe(all[column]);
  for (const stat of [...Object.values(categories), ...Object.values(pooled).map(({ all }) => all)])
    expect(stat.allocated - stat.freed).toBe(stat.current);
  expect(stats.tensors.large.current > 0).toBe('model' in config);
});

test('before the first step there is state only', () => {
  const run = compiled({ devices: 2, strategy: 'ddp' });
  const { tensorBytes, categories } = memoryStats(run, [0], measuredOf(run));
  expect([tensorBytes.all.peak, tensorBytes.all.freed]).toEqual([tensorBytes.all.current, 0]);
  expect(numbers(categories.activations)).toEqual([0, 0, 0, 0]);
});

test('with several batch shapes, each step counts as its own shape, and state is shared', () => {
  const config = { devices: 2, strategy: 'ddp' };
  const shapes = [
    { batch: 1, tokens: 5 },
    { batch: 2, tokens: 7 },
  ];
  const run = compiled(config, shapes);
  const [first, second] = shapes.map((shape) => compiled(config, [shape]));
  const bytes = (r: CompiledRun, steps: number[]) => memoryStats(r, steps, measuredOf(r)).tensorBytes.all;
  expect(bytes(run, [3, 2]).freed).toBe(bytes(first, [3]).freed + bytes(second, [2]).freed);
  expect(bytes(run, [3]).freed).toBe(bytes(first, [3]).freed);
  // The rows of the positional encoding are per length.
  expect(bytes(run, [1, 1]).current).toBe(bytes(first, [1]).current + 8 * 4);
});

test("the summary has PyTorch's lines in our words, then a line for each category", () => {
  const run = compiled({ devices: 2, strategy: 'fsdp' });
  const name = 'a name that is far too long for the heading of a table of seventy-seven columns';
  const lines = memorySummary(run, 1, measuredOf(run), { id: 12, name }).trimEnd().split('\n');
  for (const line of lines) expect(line).toHaveLength(77);
  expect(lines[1]).toBe('|                WebGPU buffers of this worker, device ID 12                |');
  expect(lines[3]).toBe('|             GPU OOMs: 0            |        allocation retries: 3         |');
  expect(lines.join('')).not.toMatch(/cuda/i);
  const labels = lines.map((line) => line.split('|')[1].trim()).filter((label) => !/^[=-]+$/.test(label));
  expect(labels.filter((label) => !label.startsWith('from')).slice(2)).toEqual([
    'Metric',
    'Allocated memory',
    'Active memory',
    'Requested memory',
    'GPU reserved memory',
    'Non-releasable memory',
    'Allocations',
    'Active allocs',
    'GPU reserved segments',
    'Non-releasable allocs',
    'Oversize allocations',
    'Oversize GPU segments',
    `By category, on ${name.slice(0, 56)}…`,
    'Category',
    ...CATEGORIES,
  ]);
});
