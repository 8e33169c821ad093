import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openInProcessMailboxes } from '../comm/in-process.ts';
import { parseConfig } from '../config.ts';
import { buildModel } from '../model/build-model.ts';
import type { Copy } from '../runtime/copies.ts';
import { adapterProfile, type OpenDevice, openDevice } from '../runtime/device.ts';
import { Executor } from '../runtime/executor.ts';
import type { MappedView } from '../runtime/staging.ts';
import { compileRun } from '../schedule/compile.ts';
import { randomChoice } from '../schedule/fixtures/interleaving.ts';
import { smallModel } from '../schedule/fixtures/small-runs.ts';
import type { AdapterProfile } from '../schedule/profile.ts';
import type { StepOutcome } from '../schedule/rank-engine.ts';
import { fillRank, freshParameters } from '../trainer/state.ts';
import { openAdapter } from './adapters.ts';
import { mappedView } from './mapped-view.ts';
import { parallelCopy } from './parallel-copy.ts';

/** Copies of a lane overlap: they may end in any order, and one that never ends is told of. */

let open: OpenDevice;
let profile: AdapterProfile;

beforeAll(async () => {
  const { adapter, entry } = await openAdapter('software');
  profile = { ...adapterProfile(adapter, entry.name, true), stagingSlotBytes: 512 };
  open = await openDevice(adapter);
});
afterAll(() => open?.close());

const batch = { batch: 2, tokens: 5 };
const tokens = (seed: number) => Uint32Array.from({ length: 10 }, (_, i) => (seed * 7 + i * 5) % 11);

async function train(strategy: unknown, devices: number, copy: Copy | undefined, stallMs?: number, view?: MappedView) {
  const config = parseConfig({ model: smallModel, devices, strategy, optimizer: { kind: 'adam' } });
  const model = buildModel(config.model, null);
  const ranks = Array.from({ length: devices }, (_, rank) => rank);
  const runs = ranks.map((rank) => compileRun({ config, model, shapes: [batch], rank, profile }));
  const mailboxes = openInProcessMailboxes(devices, runs[0].regions);
  const options = { ...(copy ? { copy } : {}), ...(stallMs ? { stallMs } : {}), ...(view ? { view } : {}) };
  const engines = await Promise.all(runs.map((run, r) => Executor.create(run, open, mailboxes[r], options)));
  await Promise.all(engines.map((engine, r) => fillRank(engine, runs[r], freshParameters(config.trainer.seed))));
  const outcomes: StepOutcome[][] = [];
  for (let step = 0; step < 2; step++)
    outcomes.push(
      await Promise.all(
        engines.map((engine, r) => {
          const inputs = [tokens(step * 2 + r)];
          const feed = { step, shapeIndex: 0, inputs, targets: inputs, lrFactor: 1, stopRequested: () => false };
          return engine.start(feed).outcome;
        }),
      ),
    );
  const said = outcomes.flat().map(({ loss, gradNorm }) => [loss, gradNorm]);
  for (const mailbox of mailboxes) mailbox.close();
  return said;
}

/** Copies that take up to 3 ms each, at random, so that later ones end before earlier ones. */
function uneven(seed: number): Copy {
  const choose = randomChoice(seed);
  return async (target, source) => {
    await new Promise((resolve) => setTimeout(resolve, choose(4, [])));
    target.set(source);
  };
}

describe('copies that end in any order give the same bits', () => {
  it.each([
    [2, 'ddp'],
    [2, { kind: 'fsdp', shardingStrategy: 'NO_SHARD' }],
    [2, { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP' }],
    [3, 'fsdp'],
    [2, { kind: 'fsdp', limitAllGathers: false, backwardPrefetch: null }],
    [2, 'fsdp_cpu_offload'],
    [1, 'fsdp_cpu_offload'],
  ])('%i rank(s), %j', async (devices, strategy) => {
    expect(await train(strategy, devices, uneven(5))).toEqual(await train(strategy, devices, undefined));
  });
});

it.each([
  [2, 'fsdp'],
  [2, 'fsdp_cpu_offload'],
])('staging seen through views, copied by threads: the same bits: %i ranks, %s', async (devices, strategy) => {
  const plain = await train(strategy, devices, undefined);
  expect(await train(strategy, devices, parallelCopy, undefined, mappedView)).toEqual(plain);
});

it('a view is made once, however often its buffer is mapped', async () => {
  const buffer = open.device.createBuffer({ size: 4096, usage: GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC });
  const views: Uint8Array[] = [];
  for (let round = 0; round < 3; round++) {
    await buffer.mapAsync(GPUMapMode.WRITE);
    views.push(mappedView(buffer.getMappedRange(0, 16), 4096));
    buffer.unmap();
  }
  expect(new Set(views.map((view) => view.buffer)).size).toBe(1);
  expect(views[0]).toHaveLength(4096);
  buffer.destroy();
});

it('a copy that never ends is an error that says where each lane stands', async () => {
  const never: Copy = () => new Promise(() => undefined);
  await expect(train('fsdp', 2, never, 400)).rejects.toMatchObject({
    code: 'timeout',
    message: expect.stringMatching(/Nothing of step 0 has got on for 400 ms: .*comm at step \d+ \(all-gather /),
  });
});

it('what is mapped stays until the copies under way have ended, though the engine is closed', async () => {
  const config = parseConfig({ model: smallModel, strategy: 'fsdp_cpu_offload' });
  const run = compileRun({ config, model: buildModel(config.model, null), shapes: [batch], rank: 0, profile });
  let end: () => void = () => undefined;
  let began: () => void = () => undefined;
  const begun = new Promise<void>((resolve) => {
    began = resolve;
  });
  const copy: Copy = () => {
    began();
    return new Promise((_, reject) => {
      end = () => reject(new Error('ended by the test'));
    });
  };
  const engine = await Executor.create(run, open, openInProcessMailboxes(1, run.regions)[0], { copy });
  const inputs = [tokens(1)];
  const feed = { step: 0, shapeIndex: 0, inputs, targets: inputs, lrFactor: 1, stopRequested: () => false };
  const { outcome } = engine.start(feed);
  await begun;
  const order: string[] = [];
  const closed = engine.close().then(() => order.push('closed'));
  await new Promise((resolve) => setTimeout(resolve, 5));
  order.push('ended');
  end();
  await closed;
  expect(order).toEqual(['ended', 'closed']);
  await expect(outcome).rejects.toThrow();
});
