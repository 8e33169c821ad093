import { afterAll, beforeAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { openInProcessMailboxes } from '../comm/in-process.ts';
import type { Mailbox } from '../comm/mailbox.ts';
import { SimulatedLink } from '../comm/simulated-link.ts';
import { parseConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import { Interpreter } from '../interpret/interpreter.ts';
import { buildModel } from '../model/build-model.ts';
import { fill } from '../ops/fill/fill.ts';
import { BufferLedger } from '../runtime/buffer-ledger.ts';
import { adapterProfile, type OpenDevice, openDevice } from '../runtime/device.ts';
import { Executor } from '../runtime/executor.ts';
import { KernelCache } from '../runtime/kernel-cache.ts';
import { compileRun } from '../schedule/compile.ts';
import { randomChoice } from '../schedule/fixtures/interleaving.ts';
import { smallModel } from '../schedule/fixtures/small-runs.ts';
import type { AdapterProfile } from '../schedule/profile.ts';
import type { RankEngine, StepFeed, StepOutcome } from '../schedule/rank-engine.ts';
import type { Schedule } from '../schedule/schedule.ts';
import { fillRank, freshParameters } from '../trainer/state.ts';
import { openAdapter } from './adapters.ts';

/** What the executor does to a device: how often it submits, what it makes and when, and how it ends when things break. */

const shapes = [
  { batch: 2, tokens: 5 },
  { batch: 1, tokens: 3 },
];

let open: OpenDevice;
let profile: AdapterProfile;
const counted = new Map<string, number>();
const count = (name: string) => counted.get(name) ?? 0;

async function openSoftware(): Promise<OpenDevice> {
  const { adapter, entry } = await openAdapter('software');
  profile = adapterProfile(adapter, entry.name, true);
  return openDevice(adapter);
}

beforeAll(async () => {
  const bare = await openSoftware();
  const device = counting(bare.device);
  open = { ...bare, device, kernels: new KernelCache(device) };
});
afterAll(() => open?.close());
beforeEach(() => counted.clear());

/** The device, with every call of a method counted under its name. */
function counting<T extends object>(target: T): T {
  return new Proxy(target, {
    get(_, key) {
      const value = Reflect.get(target, key, target);
      if (key === 'queue') return counting(value as object);
      if (typeof value !== 'function') return value;
      return (...args: unknown[]) => {
        counted.set(String(key), count(String(key)) + 1);
        return value.apply(target, args);
      };
    },
  });
}

interface Ranks {
  readonly engines: readonly RankEngine[];
  readonly schedules: readonly Schedule[];
  readonly parameterTensors: readonly string[];
  readonly reservedBytes: number;
  step(step: number, shapeIndex?: number): Promise<StepOutcome[]>;
  /** Steps 0 to `steps` − 1, each begun as soon as the one before is submitted, every rank by itself. */
  overlapped(steps: number): Promise<StepOutcome[][]>;
  parameters(): Promise<Float32Array[]>;
  close(): Promise<void>;
}

/** A mailbox whose peers come late, by up to 2 ms at random. */
function late(mailbox: Mailbox, seed: number): Mailbox {
  const choose = randomChoice(seed);
  const pause = () => new Promise<void>((resolve) => setTimeout(resolve, choose(3, [])));
  const slow = async (work: () => Promise<void>) => {
    await pause();
    await work();
    await pause();
  };
  return new Proxy(mailbox, {
    get(target, key) {
      if (key === 'beginWrite') return (region: number) => slow(() => target.beginWrite(region));
      if (key === 'arrived') return (region: number, peer: number) => slow(() => target.arrived(region, peer));
      const value = Reflect.get(target, key, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}

async function openTestRanks(
  config: object,
  device: OpenDevice | null,
  lateSeed: number | null = null,
): Promise<Ranks> {
  const parsed = parseConfig({ model: smallModel, ...config });
  const model = buildModel(parsed.model, null);
  const runs = Array.from({ length: parsed.devices }, (_, rank) =>
    compileRun({ config: parsed, model, shapes, rank, profile }),
  );
  const prompt = openInProcessMailboxes(parsed.devices, runs[0].regions, { timeoutMs: 10_000 });
  const mailboxes = lateSeed === null ? prompt : prompt.map((mailbox, r) => late(mailbox, lateSeed + r));
  const engines = await Promise.all(
    runs.map(
      async (run, r): Promise<RankEngine> =>
        device ? Executor.create(run, device, mailboxes[r]) : new Interpreter(run, mailboxes[r]),
    ),
  );
  await Promise.all(engines.map((engine, r) => fillRank(engine, runs[r], freshParameters(parsed.trainer.seed))));
  const feed = (step: number, shapeIndex: number, rank: number): StepFeed => {
    const rows = shapes[shapeIndex].batch * shapes[shapeIndex].tokens;
    const tokens = Uint32Array.from({ length: rows }, (_, i) => (3 * i + 5 * step + rank) % smallModel.vocabSize);
    return { step, shapeIndex, inputs: [tokens], targets: [tokens], lrFactor: 1, stopRequested: () => false };
  };
  const { groups } = runs[0].steps[0];
  return {
    engines,
    schedules: runs[0].steps.map((s) => s.schedule),
    parameterTensors: groups.map((g) => g.parameters.name),
    reservedBytes: runs[0].memory.reservedBytes,
    step: (step, shapeIndex = 0) =>
      Promise.all(engines.map((engine, rank) => engine.start(feed(step, shapeIndex, rank)).outcome)),
    overlapped: async (steps) => {
      const byRank = await Promise.all(
        engines.map(async (engine, rank) => {
          const outcomes: Promise<StepOutcome>[] = [];
          for (let step = 0; step < steps; step++) {
            const { submitted, outcome } = engine.start(feed(step, step % 2, rank));
            outcomes.push(outcome);
            await submitted;
          }
          return Promise.all(outcomes);
        }),
      );
      return byRank[0].map((_, step) => byRank.map((outcomes) => outcomes[step]));
    },
    parameters: () =>
      Promise.all(engines.flatMap((engine) => groups.map(({ parameters: p }) => engine.read(p.name, 0, p.bytes)))),
    close: async () => {
      await Promise.all(engines.map((engine) => engine.close()));
    },
  };
}

/** Steps of all ranks that end in a submit, as a step of training may make them. */
function submitsAllowed({ steps }: Schedule): number {
  const visits = new Set(steps.filter((s) => s.lane === 'compute').map((s) => s.visit)).size;
  const onTheGpu = new Set(['publish', 'collect', 'report', 'feed']);
  return visits + steps.filter((s) => s.lane !== 'compute' && onTheGpu.has(s.action.type)).length + 4;
}

describe('a step of training', () => {
  it.each([
    { devices: 1, strategy: 'ddp' },
    { devices: 2, strategy: 'ddp' },
    { devices: 2, strategy: 'fsdp' },
  ])(
    'submits once for each visit and each step of another lane, and makes nothing: $strategy of $devices',
    async (config) => {
      const ranks = await openTestRanks(config, open);
      await ranks.step(0);
      counted.clear();
      for (let step = 1; step <= 3; step++) {
        const before = count('submit');
        await ranks.step(step);
        const [schedule] = ranks.schedules;
        expect(count('submit') - before).toBeLessThanOrEqual(submitsAllowed(schedule) * config.devices);
        for (const engine of ranks.engines)
          expect((engine as Executor).submits).toBeLessThanOrEqual(submitsAllowed(schedule));
      }
      const made = [...counted.keys()].filter((name) => name.startsWith('create') && name !== 'createCommandEncoder');
      expect(made).toEqual([]);
      await ranks.close();
    },
  );

  it('holds the same bytes after 50 steps as after 5: those of the plan', async () => {
    const ranks = await openTestRanks({ devices: 1 }, open);
    const held: number[] = [];
    for (let step = 0; step < 50; step++) {
      await ranks.step(step);
      if (step === 4 || step === 49) held.push(...ranks.engines.map((e) => e.memory().currentBytes));
    }
    expect(held).toEqual([ranks.reservedBytes, ranks.reservedBytes]);
    await ranks.close();
    for (const engine of ranks.engines) expect(engine.memory().currentBytes).toBe(0);
  });

  it.each([1, 2])('is saved at the speed of copies: few submits read all state, %i rank(s)', async (devices) => {
    const ranks = await openTestRanks({ devices, strategy: 'fsdp', model: { ...smallModel, vocabSize: 3000 } }, open);
    counted.clear();
    await ranks.parameters();
    expect(count('submit')).toBeLessThanOrEqual(2 * devices * ranks.parameterTensors.length);
    await ranks.close();
  });

  it('may begin while the one before is reported, and peers may be late: the bits are the same', async () => {
    const config = { devices: 3, strategy: 'fsdp', model: { ...smallModel, dropout: 0.2 } };
    const calm = await openTestRanks(config, open);
    const wanted: StepOutcome[][] = [];
    for (let step = 0; step < 5; step++) wanted.push(await calm.step(step, step % 2));
    for (const seed of [null, 7]) {
      const ranks = await openTestRanks(config, open, seed);
      expect(await ranks.overlapped(5)).toEqual(wanted);
      expect(await ranks.parameters()).toEqual(await calm.parameters());
      await ranks.close();
    }
    await calm.close();
  });

  it('of another batch shape goes on from the same state', async () => {
    const order = [0, 1, 1, 0, 1];
    const [gpu, oracle] = await Promise.all([
      openTestRanks({ devices: 2, strategy: 'fsdp' }, open),
      openTestRanks({ devices: 2, strategy: 'fsdp' }, null),
    ]);
    for (const [step, shapeIndex] of order.entries()) {
      const [ours, wanted] = [await gpu.step(step, shapeIndex), await oracle.step(step, shapeIndex)];
      for (const [rank, { loss, gradNorm }] of wanted.entries()) {
        expect(ours[rank].loss).toBeCloseTo(loss, 5);
        expect(ours[rank].gradNorm).toBeCloseTo(gradNorm, 4);
      }
    }
    const [ours, wanted] = [await gpu.parameters(), await oracle.parameters()];
    ours.forEach((values, i) => {
      const most = values.reduce((worst, v, e) => Math.max(worst, Math.abs(v - wanted[i][e])), 0);
      // The key third of in_proj_bias may move by lr a step: its true gradient is 0.
      expect(most).toBeLessThan(order.length * 0.001 * 2);
    });
    await gpu.close();
    await oracle.close();
  });
});

describe('what is made', () => {
  it('is at most 40 pipelines for a run, whatever its settings', async () => {
    const kernels = new KernelCache(open.device);
    const model = { ...smallModel, dropout: 0.1 };
    const ranks = await openTestRanks({ devices: 3, model, strategy: 'fsdp' }, { ...open, kernels });
    expect(kernels.size).toBeLessThanOrEqual(40);
    expect(kernels.size).toBeGreaterThan(15);
    await ranks.close();
  });

  it('is made before step 0: a buffer or a pipeline after that is an error', async () => {
    const ledger = new BufferLedger(open.device);
    await ledger.create('first', 16, GPUBufferUsage.STORAGE);
    ledger.seal();
    await expect(ledger.create('late', 16, GPUBufferUsage.STORAGE)).rejects.toThrow(
      /buffer late was made after step 0/,
    );
    ledger.destroyAll();
    const kernels = new KernelCache(open.device);
    const dispatch = { kernel: fill, operands: [], params: { n: 1, offset: 0, value: 0 }, tiled: false };
    await kernels.pipeline(dispatch);
    kernels.seal();
    await kernels.pipeline(dispatch);
    const other = { ...dispatch, kernel: { ...fill, name: 'another' } };
    expect(() => kernels.pipeline(other)).toThrow(/pipeline another plain was made after step 0/);
  });

  it('counts what is held, and at most', async () => {
    const ledger = new BufferLedger(open.device);
    await ledger.create('a', 1024, GPUBufferUsage.STORAGE);
    await ledger.create('b', 64, GPUBufferUsage.STORAGE);
    expect([ledger.currentBytes, ledger.peakBytes]).toEqual([1088, 1088]);
    ledger.destroyAll();
    expect([ledger.currentBytes, ledger.peakBytes]).toEqual([0, 1088]);
  });

  it('is refused by name when the device has no room', async () => {
    const ledger = new BufferLedger(open.device);
    const create = ledger.create('a giant', 2 ** 52, GPUBufferUsage.STORAGE);
    await expect(create).rejects.toMatchObject({ code: 'out-of-memory', message: expect.stringContaining('a giant') });
  });
});

describe('a step that is not finite', () => {
  it.each(['ddp', 'fsdp'])('halts every rank, updates nothing then or later, and says NaN: %s', async (strategy) => {
    const ranks = await openTestRanks({ devices: 2, strategy }, open);
    const [healthy] = await ranks.step(0);
    expect(healthy.halted).toBe(false);
    const [tensor] = ranks.parameterTensors;
    const before = await ranks.engines[0].read(tensor, 0, 4);
    await ranks.engines[0].write(tensor, 0, new Float32Array([Number.NaN]));
    const poisoned = await ranks.parameters();
    const broken = await ranks.step(1);
    for (const { halted, gradNorm } of broken) expect([halted, gradNorm]).toEqual([true, Number.NaN]);
    expect(await ranks.parameters()).toEqual(poisoned);
    // Healed weights do not make it go on: the decision to stop is kept.
    await ranks.engines[0].write(tensor, 0, before as Float32Array<ArrayBuffer>);
    const healed = await ranks.parameters();
    const after = await ranks.step(2);
    for (const { halted, gradNorm } of after) {
      expect(halted).toBe(true);
      expect(gradNorm).toBeGreaterThan(0);
    }
    expect(await ranks.parameters()).toEqual(healed);
    await ranks.close();
  });
});

describe('a device that fails', () => {
  it.each([1, 2])('lost in the middle of a step: %i rank(s) end with device-lost, soon', async (devices) => {
    const device = await openSoftware();
    const ranks = await openTestRanks({ devices, strategy: 'fsdp' }, device);
    await ranks.step(0);
    const running = ranks.step(1).then(
      () => null,
      (error: unknown) => error,
    );
    await new Promise((resolve) => setTimeout(resolve, 1));
    device.device.destroy();
    const error = await within(5_000, running);
    // The step may have been done before; then the next one fails.
    const failure =
      error ??
      (await within(
        5_000,
        ranks.step(2).catch((e: unknown) => e),
      ));
    expect(failure).toBeInstanceOf(StudioError);
    expect((failure as StudioError).code).toBe('device-lost');
    const again = await within(
      5_000,
      ranks.step(3).catch((e: unknown) => e),
    );
    expect((again as StudioError).code).toBe('device-lost');
    await ranks.close();
  });

  it('reports an error of its own: the step ends with it', async () => {
    const device = await openSoftware();
    const ranks = await openTestRanks({ devices: 1 }, device);
    await ranks.step(0);
    device.device.createBuffer({ label: 'wrong', size: 16, usage: 0 });
    await device.device.queue.onSubmittedWorkDone();
    const failure = await within(
      5_000,
      ranks.step(1).catch((e: unknown) => e),
    );
    expect(failure).toBeInstanceOf(StudioError);
    expect((failure as StudioError).message).toMatch(/the device reports: .*wrong/s);
    await ranks.close();
    device.close();
  });
});

function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout>;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${ms} ms`)), ms);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

describe('a view over shared memory', () => {
  it('is a TypeError where it is handed to the device, and the process lives', async () => {
    const { engines, parameterTensors } = await openTestRanks({ devices: 1 }, await openSoftware());
    const shared = new Float32Array(new SharedArrayBuffer(16)) as unknown as Float32Array<ArrayBuffer>;
    await expect(engines[0].write(parameterTensors[0], 0, shared)).rejects.toThrow(TypeError);
    const own = Float32Array.of(1, 2, 3, 4);
    await engines[0].write(parameterTensors[0], 0, own);
    expect(await engines[0].read(parameterTensors[0], 0, 16)).toEqual(own);
  });
});

describe('a slower link between the rows', () => {
  const over = (linkGBps: number | null) => ({
    devices: 2,
    strategy: { kind: 'fsdp', shardingStrategy: 'NO_SHARD', linkGBps },
  });

  it('is passed by every byte that comes from another row, and by no other', async () => {
    const passed: [bytes: number, linkGBps: number][] = [];
    const pass = vi.spyOn(SimulatedLink.prototype, 'pass').mockImplementation(async (bytes, linkGBps) => {
      passed.push([bytes, linkGBps]);
    });
    try {
      const outcomes = [];
      for (const linkGBps of [5, null]) {
        const ranks = await openTestRanks(over(linkGBps), open);
        outcomes.push(await ranks.step(0));
        if (linkGBps === null) expect(passed).toEqual([]);
        else {
          const across = ranks.schedules[0].steps.flatMap(({ action }) =>
            action.type === 'collect' && action.linkGBps === linkGBps
              ? [action.bytesPerPeer * action.peers.length]
              : [],
          );
          expect(across.length).toBeGreaterThan(0);
          // Both ranks have the same to take.
          const byBytes = (a: number, b: number) => a - b;
          expect(passed.map(([bytes]) => bytes).sort(byBytes)).toEqual([...across, ...across].sort(byBytes));
          expect(new Set(passed.map(([, speed]) => speed))).toEqual(new Set([linkGBps]));
        }
        passed.length = 0;
        await ranks.close();
      }
      expect(outcomes[0]).toEqual(outcomes[1]);
    } finally {
      pass.mockRestore();
    }
  });
});
