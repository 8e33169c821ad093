import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { parseConfig } from '../config.ts';
import { KernelCache } from '../runtime/kernel-cache.ts';
import type { RunEvent } from '../trainer/events.ts';
import { runWorkerRanks } from './run-rank.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'run-rank-'));
});
afterEach(async () => {
  vi.restoreAllMocks();
  await rm(folder, { recursive: true, force: true });
});

const model = { kind: 'demo-transformer', vocabSize: 97, ninp: 8, nhead: 2, nhid: 12, nlayers: 1 };
const batches = fileURLToPath(new URL('../testdata/demo-transformer/batches.json', import.meta.url));

/** Runs all ranks of a config in this process; its events, and the phases as rank 0 went through them. */
async function run(config: object, adapterId = 'interpreter') {
  const parsed = parseConfig({
    model,
    data: { kind: 'batches', path: batches },
    adapter: adapterId,
    checkpoint: { atEnd: false },
    ...config,
  });
  const events: RunEvent[] = [];
  const phases: string[] = [];
  const { ranks } = await runWorkerRanks(
    {
      type: 'start',
      ranks: Array.from({ length: parsed.devices }, (_, rank) => rank),
      world: parsed.devices,
      config: parsed,
      adapterId,
      sharedFolder: join(folder, 'shared'),
      corpusFolder: join(folder, 'corpora'),
      runFolder: join(folder, 'run'),
      recordTouches: false,
      weightsFile: null,
    },
    {
      emit: (event) => events.push(event),
      stopRequested: () => false,
      onPhase: (phase) => phases.push(phase),
    },
  );
  return { events, phases, ranks };
}

describe('a worker', () => {
  it('makes no pipeline once its rank is open', async () => {
    const seal = vi.spyOn(KernelCache.prototype, 'seal');
    const pipeline = vi.spyOn(KernelCache.prototype, 'pipeline');
    const { ranks } = await run({ devices: 1, trainer: { steps: 1 } }, 'swiftshader');
    await ranks[0].engine.close();
    expect(seal.mock.invocationCallOrder).toHaveLength(1);
    expect(pipeline.mock.invocationCallOrder.length).toBeGreaterThan(10);
    expect(seal.mock.invocationCallOrder[0]).toBeGreaterThan(Math.max(...pipeline.mock.invocationCallOrder));
  }, 60_000);

  it('says in its memory summary how many steps of each batch shape there were', async () => {
    const { input, target } = JSON.parse(await readFile(batches, 'utf8'))[0][0];
    const cut = (rows: number[][], length: number) => rows.map((row) => row.slice(0, length));
    const entry = (length: number) => [{ input: cut(input, length), target: cut(target, length) }];
    const path = join(folder, 'two-shapes.json');
    await writeFile(path, JSON.stringify([5, 3, 5, 5].map(entry)));
    const { ranks, events } = await run({ devices: 1, data: { kind: 'batches', path }, trainer: { steps: 4 } });
    expect(ranks[0].result.stepsByShape).toEqual([3, 1]);
    expect(events.filter((e) => e.event === 'summary')).toHaveLength(1);
  });
});
