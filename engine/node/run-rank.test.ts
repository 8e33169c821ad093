import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { parseConfig } from '../config.ts';
import { KernelCache } from '../runtime/kernel-cache.ts';
import { planExperiment } from '../schedule/plan.ts';
import { builtInProfiles } from '../schedule/profile.ts';
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

/** Runs all ranks of a config in this process; its events, and the phases that it goes through into `phases`. */
async function run(config: object, adapterId = 'interpreter', phases: string[] = []) {
  const parsed = parseConfig({
    model,
    data: { kind: 'batches', path: batches },
    adapter: adapterId,
    checkpoint: { atEnd: false },
    ...config,
  });
  const events: RunEvent[] = [];
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
  return { events, ranks };
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

  it.each(['fsdp', 'fsdp_cpu_offload'])('holds as much host memory as was predicted: %s', async (strategy) => {
    const config = { model, data: { kind: 'batches', path: batches }, devices: 2, strategy };
    const { events } = await run({ ...config, trainer: { steps: 1 } });
    const shapes = [{ batch: 3, tokens: 12 }];
    const { hostBytes } = planExperiment(parseConfig(config), builtInProfiles.interpreter, null, shapes);
    const measured = events.flatMap((e) => (e.event === 'step' ? [e.memory.hostBytes] : []));
    expect(measured).toEqual([hostBytes, hostBytes]);
  });

  it('refuses before it fills anything what the host has no memory for', async () => {
    vi.spyOn(process, 'availableMemory').mockReturnValue(2 ** 27 + 1000);
    const phases: string[] = [];
    const refused = run({ devices: 2, strategy: 'fsdp_cpu_offload' }, 'interpreter', phases);
    await expect(refused).rejects.toMatchObject({ code: 'out-of-memory', details: { freeBytes: 1000 } });
    expect(phases).not.toContain('filling');
  });
});
