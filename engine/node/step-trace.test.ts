import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openInProcessMailboxes } from '../comm/in-process.ts';
import { parseConfig } from '../config.ts';
import { Interpreter } from '../interpret/interpreter.ts';
import { buildModel } from '../model/build-model.ts';
import { adapterProfile, type OpenDevice, openDevice } from '../runtime/device.ts';
import { Executor } from '../runtime/executor.ts';
import { compileRun } from '../schedule/compile.ts';
import { smallModel } from '../schedule/fixtures/small-runs.ts';
import type { AdapterProfile } from '../schedule/profile.ts';
import type { RankEngine, StepFeed } from '../schedule/rank-engine.ts';
import type { Schedule } from '../schedule/schedule.ts';
import type { StepTimes } from '../schedule/step-trace.ts';
import { fillRank, freshParameters } from '../trainer/state.ts';
import { openAdapter } from './adapters.ts';

/** When the steps of a schedule ran, as the engines take it down. */

let open: OpenDevice;
let profile: AdapterProfile;
beforeAll(async () => {
  const { adapter, entry } = await openAdapter('software');
  profile = adapterProfile(adapter, entry.name, true);
  open = await openDevice(adapter);
});
afterAll(() => open?.close());

/** The same device, as one that keeps no time. */
function timeless({ device, ...rest }: OpenDevice): OpenDevice {
  const features = new Set([...device.features].filter((name) => name !== 'timestamp-query'));
  const hiding = new Proxy(device, {
    get(target, key) {
      if (key === 'features') return features;
      const value = Reflect.get(target, key, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
  return { ...rest, device: hiding };
}

interface TracedRank {
  readonly schedule: Schedule;
  readonly times: StepTimes;
  readonly losses: readonly number[];
}

/** Three steps on two ranks, the second of them traced if asked for. */
async function trainThree(config: object, device: OpenDevice | null, isTraced = true): Promise<TracedRank[]> {
  const parsed = parseConfig({ model: smallModel, devices: 2, ...config });
  const model = buildModel(parsed.model, null);
  const runs = Array.from({ length: parsed.devices }, (_, rank) =>
    compileRun({ config: parsed, model, shapes: [{ batch: 2, tokens: 5 }], rank, profile }),
  );
  const mailboxes = openInProcessMailboxes(parsed.devices, runs[0].regions, { timeoutMs: 10_000 });
  return Promise.all(
    runs.map(async (run, rank) => {
      const mailbox = mailboxes[rank];
      const engine: RankEngine = device ? await Executor.create(run, device, mailbox) : new Interpreter(run, mailbox);
      await fillRank(engine, run, freshParameters(parsed.trainer.seed));
      const { schedule } = run.steps[0];
      let times: StepTimes | null = null;
      const losses: number[] = [];
      for (let step = 0; step < 3; step++) {
        const tokens = Uint32Array.from({ length: 10 }, (_, i) => (3 * i + 5 * step + rank) % smallModel.vocabSize);
        const trace = step === 1 && isTraced ? await engine.trace() : undefined;
        const batch = { inputs: [tokens], targets: [tokens] };
        const feed: StepFeed = { step, shapeIndex: 0, ...batch, lrFactor: 1, stopRequested: () => false, trace };
        losses.push((await engine.start(feed).outcome).lossMean);
        if (trace) times = await trace.finish(schedule);
      }
      await engine.close();
      return { schedule, times: times as unknown as StepTimes, losses };
    }),
  );
}

const configs = [
  { strategy: 'ddp' },
  { strategy: 'fsdp' },
  { strategy: 'fsdp_cpu_offload' },
  { strategy: { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP', limitAllGathers: false } },
];
const engines = [
  { on: 'the interpreter', device: () => null, clock: 'host' },
  { on: 'a device that keeps the time', device: () => open, clock: 'device' },
  { on: 'a device that does not', device: () => timeless(open), clock: 'host' },
];

describe.each(engines)('the times of a step on $on', ({ device, clock }) => {
  it.each(configs)('are of every step of the schedule, in its order and by its waits: %j', async (config) => {
    for (const { schedule, times } of await trainThree(config, device())) {
      expect(times.clock.kind).toBe(clock);
      expect(times.spans).toHaveLength(schedule.steps.length);
      const slackMs = times.clock.kind === 'device' ? times.clock.alignedWithinMs : 0;
      const lastOfCompute = { endMs: Number.NEGATIVE_INFINITY };
      for (const step of schedule.steps) {
        const { startMs, endMs } = times.spans[step.id];
        expect(endMs).toBeGreaterThanOrEqual(startMs);
        if (step.lane === 'compute') {
          expect(startMs).toBeGreaterThanOrEqual(lastOfCompute.endMs);
          lastOfCompute.endMs = endMs;
        }
        // A compute step is awaited until it is submitted: by the device's clock it may run later than who waited for it. A
        // publication likewise, which goes on until its peers can read it.
        for (const other of step.waits) {
          const { lane, action } = schedule.steps[other];
          if (clock !== 'host' && lane === 'compute') continue;
          const over = times.spans[other][action.type === 'publish' ? 'startMs' : 'endMs'];
          expect(startMs + slackMs, `${step.label} after ${other}`).toBeGreaterThanOrEqual(over);
        }
      }
      for (const { step, startMs, endMs } of times.waits) {
        expect(endMs).toBeGreaterThanOrEqual(startMs);
        expect(schedule.steps[step].id).toBe(step);
      }
    }
  });

  it('cost no bit: the losses are those of a run without a trace', async () => {
    const config = { strategy: 'fsdp' };
    const withTrace = await trainThree(config, device());
    const without = await trainThree(config, device(), false);
    expect(withTrace.map(({ losses }) => losses)).toEqual(without.map(({ losses }) => losses));
    expect(without[0].times).toBeNull();
  });
});
