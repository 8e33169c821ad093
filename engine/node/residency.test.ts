import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Interpreter } from '../interpret/interpreter.ts';
import { Recorder, SET_UP, type TouchedRange, type TouchedTensor } from '../schedule/recorder.ts';
import type { Schedule } from '../schedule/schedule.ts';
import { memoryAtSteps5And200 } from './fixtures/flat-memory.ts';
import { ranksOf, strategies } from './fixtures/reference-columns.ts';
import { interpreterPlace, openRanks, type Place, softwareGpuPlace } from './fixtures/reference-run.ts';

/**
 * When each unit is gathered and freed, and that memory stays flat: seen in what a run touches, in the order in which it
 * touches it, not in the plan.
 */

/** A moment is the number of a touch. */
interface GatheredLife {
  readonly unit: string;
  readonly name: string;
  readonly from: number;
  /** The first touch by a kernel of the model: it is in use from here. */
  used: number;
  to: number;
}

/** The lives of gathered units, from the touches of one rank's first step. */
class GatherLog extends Recorder {
  schedule: Schedule | null = null;
  private moment = 0;
  private readonly byName = new Map<string, GatheredLife>();

  override touch(iteration: number, step: number, tensor: TouchedTensor, range: TouchedRange): void {
    super.touch(iteration, step, tensor, range);
    if (step === SET_UP || iteration > 0 || tensor.category !== 'gathered') return;
    const moment = this.moment++;
    const unit = tensor.name.replace(/^gathered /, '').replace(/ (forward|backward|step)( \d+)?$/, '');
    const known = this.byName.get(tensor.name);
    const life = known ?? { unit, name: tensor.name, from: moment, used: Number.POSITIVE_INFINITY, to: moment };
    this.byName.set(tensor.name, life);
    life.to = moment;
    if (this.schedule?.steps[step].kind === 'compute') life.used = Math.min(life.used, moment);
  }

  lives(): GatheredLife[] {
    return [...this.byName.values()];
  }

  /** Most of these lives at one moment. */
  static most(lives: readonly { from: number; to: number }[]): number {
    return Math.max(...lives.map(({ from }) => lives.filter((l) => l.from <= from && from <= l.to).length));
  }
}

const LAYERS = 3;
const model = { kind: 'demo-transformer', vocabSize: 11, ninp: 6, nhead: 3, nhid: 10, nlayers: LAYERS };

async function gathersOf(place: Place, strategy: object, devices = 2): Promise<GatheredLife[][]> {
  const logs: GatherLog[] = [];
  const logged: Place = {
    ...place,
    open: (run, mailbox) => {
      const log = new GatherLog();
      log.schedule = run.steps[0].schedule;
      logs[run.rank] = log;
      return place.open(run, mailbox, log);
    },
  };
  const ranks = await openRanks(logged, {
    config: { model, devices, strategy: { kind: 'fsdp', ...strategy } },
    shape: { batch: 1, tokens: 3 },
    batch: (_, rank) => ({ input: [1, 2, rank], target: [2, rank, 3] }),
  });
  await ranks.train(1);
  await ranks.close();
  return logs.map((log) => log.lives());
}

const unitsOf = (lives: readonly GatheredLife[], unit: string) => lives.filter((life) => life.unit === unit);
const besidesRoot = (lives: readonly GatheredLife[]) => lives.filter((life) => life.unit !== 'root');
const layers = ['encoder', 'decoder'].flatMap((side) =>
  Array.from({ length: LAYERS }, (_, i) => `transformer.${side}.layers.${i}`),
);

describe('when units are gathered and freed', () => {
  it.each([
    [{ shardingStrategy: 'FULL_SHARD' }, 2],
    [{ shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2] }, 4],
    [{ cpuOffload: true }, 2],
  ])(
    '%o: before forward, freed after it, again before backward; the root once, throughout',
    async (strategy, devices) => {
      for (const lives of await gathersOf(interpreterPlace, strategy, devices)) {
        for (const unit of layers) {
          const own = unitsOf(lives, unit);
          expect(own.map(({ name }) => name.split(' ').at(-1))).toEqual(['forward', 'backward']);
          expect(own[0].to).toBeLessThan(own[1].from);
        }
        const [root, ...more] = unitsOf(lives, 'root');
        expect(more).toEqual([]);
        for (const life of besidesRoot(lives)) expect(root.used).toBeLessThan(life.used);
        // Forward in the model's order, backward in reverse.
        const order = (name: string) =>
          besidesRoot(lives)
            .filter((life) => life.name.endsWith(name))
            .sort((a, b) => a.used - b.used)
            .map(({ unit }) => unit);
        expect(order('forward')).toEqual(layers);
        expect(order('backward')).toEqual([...layers].reverse());
      }
    },
  );

  it.each([
    [{ shardingStrategy: 'SHARD_GRAD_OP' }, 2],
    [{ shardingStrategy: 'HYBRID_SHARD_ZERO2', deviceMesh: [2, 2] }, 4],
  ])('%o: each unit once, and all of them at the end of forward', async (strategy, devices) => {
    for (const lives of await gathersOf(interpreterPlace, strategy, devices)) {
      expect(lives.map(({ unit }) => unit).sort()).toEqual(['root', ...layers].sort());
      expect(GatherLog.most(lives)).toBe(1 + layers.length);
    }
  });

  it.each([{ shardingStrategy: 'NO_SHARD' }])('%o gathers nothing', async (strategy) => {
    expect(await gathersOf(interpreterPlace, strategy)).toEqual([[], []]);
  });
});

let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
beforeAll(async () => {
  gpu = await softwareGpuPlace();
});
afterAll(() => gpu?.device.close());
const places = { 'the interpreter': () => interpreterPlace, 'a software GPU': () => gpu as Place };

describe('the limiter, counted at run time (report 45)', () => {
  describe.each(Object.entries(places))('on %s', (_, place) => {
    it.each(['BACKWARD_PRE', 'BACKWARD_POST', null])(
      'FULL_SHARD, %s: at most two units besides the root',
      async (backwardPrefetch) => {
        for (const lives of await gathersOf(place(), { backwardPrefetch }))
          expect(GatherLog.most(besidesRoot(lives))).toBeLessThanOrEqual(2);
      },
    );

    it('FULL_SHARD without it: more', async () => {
      for (const lives of await gathersOf(place(), { limitAllGathers: false }))
        expect(GatherLog.most(besidesRoot(lives))).toBeGreaterThan(2);
    });

    it('SHARD_GRAD_OP: at most two units gathered and not yet in use; without it all of them', async () => {
      const waiting = (lives: readonly GatheredLife[]) =>
        GatherLog.most(besidesRoot(lives).map(({ from, used }) => ({ from, to: used - 1 })));
      for (const lives of await gathersOf(place(), { shardingStrategy: 'SHARD_GRAD_OP' }))
        expect(waiting(lives)).toBeLessThanOrEqual(2);
      const unlimited = { shardingStrategy: 'SHARD_GRAD_OP', limitAllGathers: false };
      for (const lives of await gathersOf(place(), unlimited)) expect(waiting(lives)).toBeGreaterThan(2);
    });
  });
});

describe('what is live at rest under offload', () => {
  const offloaded = (shardingStrategy: string, deviceMesh: number[] | null = null) => ({
    kind: 'fsdp',
    shardingStrategy,
    deviceMesh,
    cpuOffload: true,
  });
  const cases: [string, object, number][] = [
    ['FULL_SHARD', offloaded('FULL_SHARD'), 2],
    ['SHARD_GRAD_OP', offloaded('SHARD_GRAD_OP'), 3],
    ['NO_SHARD', offloaded('NO_SHARD'), 2],
    ['HYBRID_SHARD', offloaded('HYBRID_SHARD', [2, 2]), 4],
    ['HYBRID_SHARD_ZERO2', offloaded('HYBRID_SHARD_ZERO2', [2, 2]), 4],
  ];
  describe.each(Object.entries(places))('on %s', (_, place) => {
    it.each(cases)('%s: control and constant tables, nothing of the model', async (__, strategy, devices) => {
      const ranks = await openRanks(place(), {
        config: { model, devices, strategy },
        shape: { batch: 1, tokens: 3 },
        batch: (step, rank) => ({ input: [1, 2, rank], target: [2, step, 3] }),
      });
      await ranks.train(2);
      for (const [rank, { steps }] of ranks.runs.entries()) {
        const { schedule } = steps[0];
        const { workspace, staging, ...ofModel } = ranks.recorders[rank]
          .liveBytes(1, schedule.steps.length + 1)
          .at(-1) as ReturnType<Recorder['liveBytes']>[number];
        expect(ofModel).toEqual({ parameters: 0, gathered: 0, gradients: 0, optimizer: 0, activations: 0 });
        expect(staging).toBe(0);
        const kept = schedule.tensors.filter((t) => t.state && t.space === 'device');
        expect(workspace).toBe(kept.reduce((sum, { bytes }) => sum + bytes, 0));
        expect(kept.filter(({ name, contents }) => name !== 'control' && !contents).map(({ name }) => name)).toEqual(
          [],
        );
        // What it keeps of the model is on the host: parameters and two moments at least.
        const held = steps[0].groups.reduce((sum, { layout }) => sum + layout.shardElements * 4, 0);
        expect(ranks.engines[rank].memory().hostBytes).toBeGreaterThanOrEqual(3 * held);
      }
      await ranks.close();
    });
  });
});

describe('memory stays flat: step 200 touches what step 5 touched', () => {
  const check = async (place: Place, strategy: object) => {
    const [early, late] = await memoryAtSteps5And200(place, strategy, ranksOf(strategy));
    expect(early[0].live.length).toBeGreaterThan(50);
    expect(late).toEqual(early);
  };
  it.each(Object.entries(strategies))('on the interpreter, %s', async (_, strategy) => {
    // Without poison, which takes longer than the steps.
    const open: Place['open'] = async (run, mailbox, recorder) => new Interpreter(run, mailbox, { recorder });
    await check({ ...interpreterPlace, open }, strategy);
  });

  // The others on a GPU: npm run test:grid.
  it.each(['DDP', 'SHARD_GRAD_OP', 'FULL_SHARD', 'offloaded FULL_SHARD'])('on a software GPU, %s', (name) =>
    check(gpu, strategies[name]),
  );
});
