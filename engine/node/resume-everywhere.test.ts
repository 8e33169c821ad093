import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { seededRandom } from '../ops/kernel-case.ts';
import { type TrainedRun, trainRun } from './fixtures/train-run.ts';

/** Each step takes the same twelve samples, however many ranks share them. */
const SAMPLES = 12;
const [SAVED, STEPS] = [2, 4];
const WORLDS = [1, 2, 3, 4] as const;
const FORMATS = ['full', 'sharded'] as const;

const fsdp = (more: object = {}) => ({ kind: 'fsdp', ...more });
const STRATEGIES: Readonly<Record<string, string | object>> = {
  DDP: 'ddp',
  FULL_SHARD: fsdp(),
  SHARD_GRAD_OP: fsdp({ shardingStrategy: 'SHARD_GRAD_OP', autoWrapPolicy: ['Linear'] }),
  NO_SHARD: fsdp({ shardingStrategy: 'NO_SHARD' }),
  'CPU offload': 'fsdp_cpu_offload',
  HYBRID_SHARD: fsdp({ shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2] }),
};
const strategiesOf = (world: number) =>
  Object.keys(STRATEGIES).filter((name) => world === 4 || name !== 'HYBRID_SHARD');

/** Every strategy on every number of ranks that it can have, saved in the two forms by turns. */
const SAVERS = WORLDS.flatMap((world) => strategiesOf(world).map((strategy) => ({ world, strategy }))).map(
  (saver, i) => ({ ...saver, format: FORMATS[i % 2], index: i }),
);
type Saver = (typeof SAVERS)[number];

/**
 * Who goes on from what a saver left: on each number of ranks one strategy, another one for the next saver; and what only
 * four ranks can have, HYBRID_SHARD, goes on from each and is gone on from by each.
 */
function loadersOf({ index, strategy }: Saver): { readonly world: number; readonly strategy: string }[] {
  const byTurns = WORLDS.map((world) => {
    const names = strategiesOf(3);
    return { world, strategy: names[(index + world * Math.floor(index / names.length)) % names.length] };
  });
  const ofFour = strategy === 'HYBRID_SHARD' ? strategiesOf(4) : ['HYBRID_SHARD'];
  return [...byTurns, ...ofFour.map((name) => ({ world: 4, strategy: name }))];
}

let folder: string;

function train(name: string, world: number, strategy: string, checkpoint: object): Promise<TrainedRun> {
  return trainRun(join(folder, name), {
    // Five rows are 2, 2, 1 and none for four ranks.
    model: { kind: 'demo-transformer', vocabSize: null, ninp: 6, nhead: 2, nhid: 5, nlayers: 1, dropout: 0 },
    data: { kind: 'wikitext2', path: join(folder, 'text.txt'), blockSize: 6, batchSize: SAMPLES / world },
    optimizer: { kind: 'adamw', lr: 0.01, groups: [{ match: '*bias', weightDecay: 0 }] },
    devices: world,
    strategy: STRATEGIES[strategy],
    trainer: { steps: STEPS },
    checkpoint,
  });
}

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'resume-everywhere-'));
  const random = seededRandom(1);
  const words = Array.from({ length: 1000 }, () => `w${Math.floor(random() * 30)}`);
  await writeFile(join(folder, 'text.txt'), words.join(' '));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

describe('10, 11: trained and saved by 1 to 4 ranks, gone on with by 1 to 4 ranks', () => {
  for (const saver of SAVERS)
    it(`${saver.format} of ${saver.world} under ${saver.strategy}`, async () => {
      const { world: from, strategy, format, index } = saver;
      const whole = await train(`whole-${index}`, from, strategy, { every: SAVED, atEnd: false, format });
      for (const { world: to, strategy: other } of loadersOf(saver)) {
        const checkpoint = { resume: whole.checkpoints[0], atEnd: false };
        const rest = await train(`rest-${index}-${to}-${other}`, to, other, checkpoint);
        expect([...rest.lossMeans.keys()]).toEqual([SAVED, SAVED + 1]);
        for (const [step, loss] of rest.lossMeans) {
          const what = `step ${step}, by ${to} under ${other}`;
          expect(Math.abs(loss / whole.lossMeans.get(step)! - 1), what).toBeLessThan(1e-4);
          if (from !== to) continue;
          // One number of ranks is one mathematics, whatever the strategy.
          expect(rest.losses.get(step), what).toEqual(whole.losses.get(step));
          expect(rest.norms.get(step), what).toBe(whole.norms.get(step));
        }
      }
    });

  it('each strategy went on from what each other had saved', () => {
    const names = Object.keys(STRATEGIES);
    const met = new Set(SAVERS.flatMap((s) => loadersOf(s).map(({ strategy }) => `${s.strategy} → ${strategy}`)));
    const missed = names.flatMap((a) => names.map((b) => `${a} → ${b}`)).filter((pair) => !met.has(pair));
    expect(missed).toEqual([]);
  });
});
