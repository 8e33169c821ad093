import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { dropoutMasksOf, kernelsOf } from '../checkpoint/stored-checkpoint.ts';
import { parseConfig } from '../config.ts';
import { MASK_VERSION } from '../ops/dropout/dropout-mask.ts';
import type { RunEvent } from '../trainer/events.ts';
import { openAdapter } from './adapters.ts';
import { openCheckpointPath } from './checkpoint-path.ts';
import { referenceRun } from './fixtures/train-run.ts';
import { variantsFor } from './open-start.ts';
import { runWorkerRanks } from './run-rank.ts';
import { writeVariants } from './variant-store.ts';

const shape = 'floats nt few rows, wide, short';
const [saved, since] = [{ [shape]: 'spread-36x32k16' }, { [shape]: 'tiled' }];

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'resume-kernels-'));
});
afterEach(() => rm(folder, { recursive: true }));

const choose = async (dataFolder: string, variants: Record<string, string>) =>
  writeVariants(dataFolder, (await openAdapter('swiftshader')).entry, variants);

/** A run on the bundled software GPU whose tuner chose `variants`. */
async function train(name: string, variants: Record<string, string>, input: object) {
  const model = { ...referenceRun.model, ninp: 8, nhead: 2, nhid: 12, nlayers: 1, dropout: 0.1 };
  const config = parseConfig({ ...referenceRun, model, devices: 1, adapter: 'swiftshader', ...input });
  const events: RunEvent[] = [];
  const places = { sharedFolder: join(folder, 'shared'), corpusFolder: join(folder, 'corpora') };
  await choose(folder, variants);
  const files = { runFolder: join(folder, name), recordTouches: false, weightsFile: null };
  const { ranks } = await runWorkerRanks(
    { type: 'start', ranks: [0], world: 1, config, adapterId: 'swiftshader', ...places, ...files },
    { emit: (event) => events.push(event), stopRequested: () => false, onPhase: () => undefined },
  );
  await ranks[0].engine.close();
  const lines = events.flatMap((event) => (event.event === 'log' ? [event.line] : []));
  return { start: events.find((event) => event.event === 'start'), lines, result: ranks[0].result };
}

it.each(['full', 'sharded'])(
  'a %s checkpoint records the kernel variants and masks of its run, and a resume there keeps to them',
  async (format) => {
    const first = await train('first', saved, { trainer: { steps: 1 }, checkpoint: { format } });
    const resume = first.result.checkpoints[0].path;
    const { checkpoint, close } = await openCheckpointPath(resume);
    expect(kernelsOf(checkpoint)).toEqual({
      adapter: expect.stringContaining('SwiftShader'),
      driver: expect.any(String),
      variants: saved,
    });
    expect(dropoutMasksOf(checkpoint)).toBe(MASK_VERSION);
    await close();
    const rest = await train('rest', since, { trainer: { steps: 2 }, checkpoint: { resume, atEnd: false } });
    expect(rest.start).toMatchObject({ variants: saved });
    expect(rest.lines.join()).toContain("the kernel variants are the checkpoint's");
    expect(rest.lines.join()).not.toContain('masks');
  },
  60_000,
);

it('ranks that would choose otherwise, on adapters of different kinds, take the variants of rank 0', async () => {
  const model = { ...referenceRun.model, ninp: 8, nhead: 2, nhid: 12, nlayers: 1 };
  const config = parseConfig({ ...referenceRun, model, devices: 2, adapter: 'swiftshader', trainer: { steps: 1 } });
  const events: RunEvent[] = [];
  await mkdir(join(folder, 'shared'));
  const places = { sharedFolder: join(folder, 'shared'), runFolder: folder };
  const start = {
    type: 'start' as const,
    world: 2,
    config,
    adapterId: 'swiftshader',
    recordTouches: false,
    weightsFile: null,
  };
  const both = await Promise.all(
    [saved, since].map(async (variants, rank) => {
      const dataFolder = join(folder, `data of ${rank}`);
      await choose(dataFolder, variants);
      return runWorkerRanks(
        { ...start, ...places, corpusFolder: join(dataFolder, 'corpora'), ranks: [rank] },
        { emit: (event) => events.push(event), stopRequested: () => false, onPhase: () => undefined },
      );
    }),
  );
  for (const { ranks } of both) await ranks[0].engine.close();
  expect(events.find(({ event }) => event === 'start')).toMatchObject({ variants: saved });
  const said = events.flatMap((e) => (e.event === 'log' && e.line.includes('kernel variants') ? [e] : []));
  expect(said).toEqual([{ event: 'log', rank: 1, line: "the kernel variants are rank 0's, whose adapter is another" }]);
  const { checkpoint, close } = await openCheckpointPath(both[0].ranks[0].result.checkpoints[0].path);
  expect(kernelsOf(checkpoint)).toMatchObject({ variants: saved });
  await close();
}, 60_000);

it('on another adapter or driver a resume takes the variants chosen there, and says so', () => {
  const kernels = { adapter: 'a GPU', driver: '1', variants: saved };
  for (const there of [
    { name: 'another', driver: '1' },
    { name: 'a GPU', driver: '2' },
  ]) {
    const { variants, note } = variantsFor({ kernels }, there, since);
    expect(variants).toEqual(since);
    expect(note).toContain('from another adapter (a GPU, driver 1)');
  }
  expect(variantsFor({ kernels: null }, { name: 'a GPU', driver: '1' }, since)).toEqual({
    variants: since,
    note: null,
  });
});
