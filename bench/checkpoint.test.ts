import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { CheckpointKind } from '../engine/checkpoint/stored-checkpoint.ts';
import { checkpointName } from '../engine/node/checkpoint-list.ts';
import { checkpointsFolder } from '../engine/node/checkpoint-store.ts';
import { CheckpointProcess } from './checkpoint-process.ts';
import type { WorkJob } from './checkpoint-work.ts';

const BOUND_BYTES = 256 * 2 ** 20;
const wide = { kind: 'demo-transformer', ninp: 1024, nhead: 16, nhid: 4096 };
/** 1.4 GB of parameters, the two largest of 512 MB, and twice as much of Adam's state: a training of 4.1 GB. */
const trained = { ...wide, vocabSize: 125_000, nlayers: 3 };
/** 4.1 GB of parameters, the two largest of 1 GB. */
const weights = { ...wide, vocabSize: 250_000, nlayers: 18 };

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'large-checkpoint-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** How much memory the process of a job needs, the most of all ranks. What it writes takes no room on the disk. */
async function growthOf(job: Partial<WorkJob> & Pick<WorkJob, 'action' | 'path'>, ranks = 1): Promise<number> {
  const whole = { to: '', kind: 'full', model: trained, ranks, sparse: true, ...job } as const;
  const jobs = Array.from({ length: ranks }, (_, rank) => CheckpointProcess.start({ ...whole, rank }));
  const results = await Promise.all((await Promise.all(jobs)).map((started) => started.go()));
  return Math.max(...results.map(({ growthBytes }) => growthBytes));
}

const saved = (kind: CheckpointKind) => path.join(checkpointsFolder(folder), checkpointName(1, kind));
const modelOf = (kind: CheckpointKind) => (kind === 'safetensors' ? weights : trained);
const KINDS = ['full', 'sharded', 'safetensors'] as const;

describe('a checkpoint of 4.1 GB: memory grows by less than 256 MiB', { timeout: 300_000 }, () => {
  let saves: Readonly<Record<CheckpointKind, number>>;
  beforeAll(async () => {
    const save = (kind: CheckpointKind, ranks: number) =>
      growthOf({ action: 'save', path: folder, kind, model: modelOf(kind) }, ranks);
    saves = {
      full: await save('full', 1),
      sharded: await save('sharded', 2),
      safetensors: await save('safetensors', 1),
    };
  }, 300_000);

  test.each(KINDS)('save %s', (kind) => {
    expect(saves[kind]).toBeLessThan(BOUND_BYTES);
  });

  test.each([
    ...KINDS.map((kind) => ['inspect', kind] as const),
    ['verify', 'full'],
    ['verify', 'sharded'],
    ['load', 'full'],
    ['load', 'sharded'],
    ['download', 'sharded'],
    // Of the folder as a .tar, which is packed as it is brought.
    ['import', 'sharded'],
  ] as const)('%s %s', async (action, kind) => {
    const growthBytes = await growthOf({ action, path: saved(kind), to: path.join(folder, 'brought') });
    expect(growthBytes).toBeGreaterThan(0);
    expect(growthBytes).toBeLessThan(BOUND_BYTES);
  });

  // Each reader and each writer. All nine pairs: npm run bench -- checkpoint --sparse --rows " to "
  test.each([
    ['full', 'sharded'],
    ['full', 'safetensors'],
    ['sharded', 'full'],
    ['sharded', 'safetensors'],
    ['safetensors', 'full'],
  ] as const)('convert %s to %s', async (from, kind) => {
    const to = path.join(folder, `${from} to ${kind}`);
    const growthBytes = await growthOf({ action: 'convert', path: saved(from), to, kind });
    expect(growthBytes).toBeGreaterThan(0);
    expect(growthBytes).toBeLessThan(BOUND_BYTES);
  });
});
