import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openInProcessMailboxes } from '../comm/in-process.ts';
import { parseConfig } from '../config.ts';
import { Interpreter } from '../interpret/interpreter.ts';
import { buildModel } from '../model/build-model.ts';
import { elementsOf } from '../ops/graph.ts';
import { QUANTILES_TENSOR } from '../schedule/compile.ts';
import { compileRanks, smallModel } from '../schedule/fixtures/small-runs.ts';
import { liveBytes } from '../schedule/memory.ts';
import { Recorder, SET_UP, type TouchedRange, type TouchedTensor } from '../schedule/recorder.ts';
import { fillRank, freshParameters, heldParts } from '../trainer/state.ts';
import { expectAsPlanned, expectSameBits, type Trained } from './fixtures/laws.ts';
import { interpreterPlace, openRanks, type Place, softwareGpuPlace } from './fixtures/reference-run.ts';

/** init.mode cpu, device and empty: where values are made, and what is held meanwhile; never what they are. */

const shape = { batch: 2, tokens: 3 };
const batch = (step: number, rank: number) => {
  const input = Array.from({ length: 6 }, (_, i) => (7 * step + 5 * rank + 3 * i) % 11);
  return { input, target: input };
};
/** Normal, uniform and constant parameters; rows that do not divide evenly, and empty shards. */
const models = {
  demo: smallModel,
  gpt2: { kind: 'gpt2', nLayer: 1, nHead: 2, nEmbd: 6, nPositions: 40, vocabSize: 11 },
};

async function trained(place: Place, config: object, mode: string): Promise<Trained> {
  const ranks = await openRanks(place, { config: { ...config, init: { mode } }, shape, batch });
  try {
    const before = await ranks.parameters();
    const outcomes = await ranks.train(1);
    expectAsPlanned(ranks, [0], mode);
    return { outcomes, parameters: before };
  } finally {
    await ranks.close();
  }
}

const strategies: Record<string, object | string> = {
  DDP: 'ddp',
  FULL_SHARD: 'fsdp',
  SHARD_GRAD_OP: { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP', autoWrapPolicy: [] },
  offload: 'fsdp_cpu_offload',
};

describe('on the interpreter', () => {
  it.each([1, 2, 5])('%i ranks: the same bits under every mode and strategy', async (devices) => {
    for (const model of Object.values(models))
      for (const strategy of Object.values(strategies)) {
        const config = { devices, model, strategy };
        const wanted = await trained(interpreterPlace, config, 'empty');
        for (const mode of ['cpu', 'device'])
          expectSameBits(await trained(interpreterPlace, config, mode), wanted, `${mode} ${JSON.stringify(config)}`);
      }
  });
});

describe('on a software GPU', () => {
  let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
  beforeAll(async () => {
    gpu = await softwareGpuPlace();
  });
  afterAll(() => gpu?.device.close());

  it.each(Object.entries(strategies))(
    '%s: the bits that the interpreter has, under every mode',
    async (_, strategy) => {
      const config = { devices: 3, model: smallModel, strategy };
      const { parameters } = await trained(interpreterPlace, config, 'empty');
      const wanted = await trained(gpu, config, 'empty');
      expectSameBits({ ...wanted, parameters }, wanted, 'interpreter and GPU');
      for (const mode of ['cpu', 'device']) expectSameBits(await trained(gpu, config, mode), wanted, mode);
    },
  );
});

/** What is touched before step 0, by tensor, in order of first touch. */
class SetUp extends Recorder {
  readonly tensors = new Map<string, TouchedTensor>();
  override touch(iteration: number, step: number, tensor: TouchedTensor, range: TouchedRange): void {
    if (step === SET_UP) this.tensors.set(tensor.name, tensor);
    super.touch(iteration, step, tensor, range);
  }
}

/** Fills one rank of a config; what was touched meanwhile, and the elements that were asked of each parameter at once. */
async function filled(config: object, rank: number) {
  const runs = compileRanks({ config });
  const mailboxes = openInProcessMailboxes(runs.length, runs[0].regions);
  const recorder = new SetUp();
  const engine = new Interpreter(runs[rank], mailboxes[rank], { recorder });
  const parsed = parseConfig({ model: smallModel, ...config });
  const fresh = freshParameters(parsed.trainer.seed);
  const asked: { name: string; count: number }[] = [];
  const source = Object.assign(
    (...[spec, first, count]: Parameters<typeof fresh>) => {
      asked.push({ name: spec.name, count });
      return fresh(spec, first, count);
    },
    { seed: fresh.seed },
  );
  await fillRank(engine, runs[rank], source);
  return { run: runs[rank], touched: [...recorder.tensors.values()], asked, model: buildModel(parsed.model, null) };
}

describe('what is held while a rank is filled', () => {
  const config = (mode: string, strategy: object | string = 'fsdp') => ({ devices: 3, strategy, init: { mode } });
  const bytes = (tensors: readonly TouchedTensor[]) => tensors.reduce((sum, t) => sum + t.bytes, 0);

  const sharded = (shardingStrategy: string, deviceMesh: number[] | null = null) => ({
    kind: 'fsdp',
    shardingStrategy,
    deviceMesh,
  });
  it.each([
    ['FULL_SHARD', 3, 0, sharded('FULL_SHARD')],
    ['FULL_SHARD', 3, 2, sharded('FULL_SHARD')],
    ['SHARD_GRAD_OP', 3, 1, sharded('SHARD_GRAD_OP')],
    ['HYBRID_SHARD', 4, 3, sharded('HYBRID_SHARD', [2, 2])],
    ['HYBRID_SHARD_ZERO2', 4, 2, sharded('HYBRID_SHARD_ZERO2', [2, 2])],
  ])('empty, %s of %i: what rank %i keeps, and one piece of a unit beside it', async (_, devices, rank, strategy) => {
    const { run, touched, asked } = await filled({ devices, strategy, init: { mode: 'empty' } }, rank);
    const { schedule, groups } = run.steps[0];
    const state = schedule.tensors.filter((t) => t.state);
    expect(touched.map((t) => t.name).toSorted()).toEqual(state.map((t) => t.name).toSorted());
    expect(bytes(touched)).toBe(bytes(state));
    const shards = groups.reduce((sum, g) => sum + g.layout.shardElements * 4 * (1 + Object.keys(g.state).length), 0);
    expect(bytes(touched.filter((t) => t.category === 'parameters' || t.category === 'optimizer'))).toBe(shards);
    const largestUnit = Math.max(...groups.map((g) => g.layout.shardElements));
    expect(Math.max(...asked.map((a) => a.count))).toBeLessThanOrEqual(largestUnit);
    const own = groups.flatMap((group) => [...heldParts(run, group)].map((part) => part.count));
    expect(asked.map((a) => a.count)).toEqual(own);
  });

  it('cpu: each whole parameter on the host, nothing more on the device', async () => {
    const { run, touched, asked, model } = await filled(config('cpu'), 2);
    expect(bytes(touched)).toBe(bytes(run.steps[0].schedule.tensors.filter((t) => t.state)));
    expect(asked.map((a) => [a.name, a.count]).toSorted()).toEqual(
      model.parameters.map((p) => [p.name, elementsOf(p.shape)]).toSorted(),
    );
  });

  it('device: the host makes none, and the table of quantiles is in the plan, in this mode only', async () => {
    const { run, touched, asked } = await filled(config('device'), 1);
    expect(asked).toEqual([]);
    const table = touched.find((t) => t.name === QUANTILES_TENSOR);
    expect(table).toMatchObject({ bytes: 65_536 * 4, category: 'workspace' });
    const [other] = compileRanks({ config: config('empty') });
    expect(other.steps[0].schedule.tensors.map((t) => t.name)).not.toContain(QUANTILES_TENSOR);
    const workspace = (r: typeof run) => liveBytes(r.steps[0].schedule)[0].workspace;
    expect(workspace(run) - workspace(other)).toBe(65_536 * 4);
    // One slot for the parameters of the kernels, whatever their number.
    expect(run.memory.slabs.at(-1)!.bytes - other.memory.slabs.at(-1)!.bytes).toBe(256);
  });

  it('device, where something is on the host: the host makes it', async () => {
    const { run, asked } = await filled(config('device', 'fsdp_cpu_offload'), 0);
    expect(run.init.device).toBeNull();
    expect(asked.length).toBeGreaterThan(10);
    const names = run.steps[0].schedule.tensors.map((t) => t.name);
    expect(names).not.toContain(QUANTILES_TENSOR);
  });
});
