import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import { rowSquareSums } from '../ops/norm/row-square-sums.ts';
import { boundBy, bytesMoved, estimate, RESOURCES } from './cost.ts';
import { copying, ratesOf } from './fixtures/rates-of.ts';
import { anyRun, compileFirst, compileRanks, smallModel } from './fixtures/small-runs.ts';
import { sumCategories } from './memory.ts';
import { planExperiment, predictionOf, shapeOfData } from './plan.ts';
import { type AdapterProfile, builtInProfiles, profileOf, ranksPerAdapter } from './profile.ts';
import type { KernelRate } from './rates.ts';
import { CATEGORIES, dispatches } from './schedule.ts';

const MiB = 2 ** 20;
const { h200, software, interpreter } = builtInProfiles;

/** The workload of Lightning Fabric's FSDP guide. */
const guide = (config: object) =>
  parseConfig({
    model: { kind: 'demo-transformer', vocabSize: 33_278, ninp: 1024, nhead: 64, nhid: 4096, nlayers: 32 },
    ...config,
  });

describe('the guide model of 1.009 billion parameters', () => {
  const ddp = planExperiment(guide({ devices: 2, strategy: 'ddp' }), h200);
  const fullShard = planExperiment(guide({ devices: 2, strategy: 'fsdp' }), h200);

  it('has the parameters that PyTorch counts', () => {
    expect(ddp.params).toBe(1_008_763_390);
    expect(fullShard.params).toBe(1_008_763_390);
  });

  it('reserves no more than the peaks measured in PyTorch on two H200', () => {
    expect(ddp.peakBytes).toBeLessThanOrEqual(23_178 * MiB);
    expect(fullShard.peakBytes).toBeLessThanOrEqual(9_710 * MiB);
  });

  it('reserves in the order DDP >= NO_SHARD > SHARD_GRAD_OP >= FULL_SHARD > offload, each at or below PyTorch’s peak', () => {
    const fsdp = (settings: object) =>
      planExperiment(guide({ devices: 2, strategy: { kind: 'fsdp', ...settings } }), h200);
    const rows = [
      { of: ddp, pyTorchMiB: 23_178 },
      { of: fsdp({ shardingStrategy: 'NO_SHARD' }), pyTorchMiB: 19_331 },
      { of: fsdp({ shardingStrategy: 'SHARD_GRAD_OP' }), pyTorchMiB: 10_147 },
      { of: fullShard, pyTorchMiB: 9_710 },
      { of: fsdp({ cpuOffload: true }), pyTorchMiB: 2_793 },
    ];
    const peaks = rows.map(({ of }) => of.peakBytes);
    rows.forEach(({ pyTorchMiB }, i) => {
      expect(peaks[i] / MiB).toBeLessThanOrEqual(pyTorchMiB);
      if (i > 0) expect(peaks[i]).toBeLessThanOrEqual(peaks[i - 1]);
    });
    const [, noShard, shardGradOp, , offload] = peaks;
    expect(shardGradOp).toBeLessThan(noShard);
    expect(offload).toBeLessThan(fullShard.peakBytes);
  });

  it('reserves what it must: parameters, gradients and two moments, whole or sharded', () => {
    const four = 4 * 4 * ddp.params;
    expect(ddp.peakBytes).toBeGreaterThan(four);
    expect(ddp.peakBytes).toBeLessThan(1.05 * four);
    expect(fullShard.peakBytes).toBeGreaterThan(four / 2);
    expect(fullShard.peakBytes).toBeLessThan(1.1 * (four / 2));
    expect(ddp.byCategory.parameters).toBeGreaterThanOrEqual(4 * ddp.params);
    expect(ddp.byCategory.optimizer).toBeGreaterThanOrEqual(8 * ddp.params);
  });

  it('fits a device of small buffers: slabs of 1 GiB cost little, and never less than what is live', () => {
    for (const strategy of ['ddp', 'fsdp']) {
      const small = planExperiment(guide({ devices: 2, strategy }), software);
      expect(small.peakBytes).toBeGreaterThanOrEqual(small.liveBytes);
      expect(small.peakBytes).toBeLessThan(1.05 * small.liveBytes);
    }
  });

  it('takes longer with a peer than alone, and milliseconds to seconds on an H200', () => {
    expect(ddp.estimateMs!).toBeGreaterThan(20);
    expect(fullShard.estimateMs!).toBeLessThan(10_000);
    const alone = planExperiment(guide({ devices: 1 }), h200);
    for (const { estimateMs } of [ddp, fullShard]) expect(alone.estimateMs!).toBeLessThan(estimateMs!);
    const links = ['uploads', 'downloads'];
    expect(links).not.toContain(alone.boundBy);
    expect(links).toContain(ddp.boundBy);
  });
});

describe('a prediction', () => {
  it('is the same for every rank', () => {
    fc.assert(
      fc.property(anyRun, (input) => {
        try {
          const [first, ...others] = compileRanks(input).map((run) => predictionOf(run, interpreter));
          for (const other of others) expect(other).toEqual(first);
        } catch (error) {
          if ((error as StudioError).code !== 'out-of-memory') throw error;
        }
      }),
      { numRuns: 15, seed: 1 },
    );
  });

  it('adds up: categories to live, the timeline to the peaks of the phases', () => {
    const p = predictionOf(compileFirst({ config: { strategy: 'fsdp' } }), interpreter);
    expect(sumCategories(p.byCategory)).toBe(p.liveBytes);
    expect(p.liveBytes).toBe(Math.max(...p.timeline.map((t) => t.liveBytes)));
    expect(p.timeline.map((t) => t.step)).toEqual(p.steps.map((s) => s.id));
    for (const t of p.timeline) {
      expect(t.byCategory).toHaveLength(CATEGORIES.length);
      expect(t.byCategory.reduce((a, b) => a + b)).toBe(t.liveBytes);
    }
    expect(p.phases.map((x) => x.phase)).toEqual(['forward', 'backward', 'optimizer']);
    for (const phase of p.phases) {
      const own = p.steps.filter((s) => s.phase === phase.phase);
      expect(phase.liveBytes).toBe(Math.max(...own.map((s) => p.timeline[s.id].liveBytes)));
      expect(p.timeline[phase.atStep].liveBytes).toBe(phase.liveBytes);
      expect(p.steps[phase.atStep].phase).toBe(phase.phase);
    }
    expect(Math.max(...p.phases.map((x) => x.liveBytes))).toBe(p.liveBytes);
  });

  describe('of a run that validates', () => {
    const settings = { data: { kind: 'moby-dick', blockSize: 64, batchSize: 8, validationFraction: 0.1 }, devices: 2 };
    const model = { kind: 'demo-transformer', vocabSize: 211, ninp: 32, nhead: 2, nhid: 64, nlayers: 4 };
    const planOf = (more: object, trainer: object = { validateEvery: 1 }) =>
      planExperiment(parseConfig({ ...settings, model, ...more, trainer }), h200);

    it('has a pass over held-out data beside the step of training, which takes less', () => {
      for (const strategy of ['ddp', 'fsdp', 'fsdp_cpu_offload', { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP' }]) {
        const [{ validation, ...step }, { validation: none, ...without }] = [
          planOf({ strategy }),
          planOf({ strategy }, {}),
        ];
        expect(none).toBeNull();
        expect(sumCategories(validation!.byCategory)).toBe(validation!.liveBytes);
        expect(validation!.byCategory.gradients).toBe(0);
        expect(validation!.liveBytes).toBeLessThanOrEqual(step.liveBytes);
        expect(validation!.estimateMs).toBeGreaterThan(0);
        expect(validation!.estimateMs).toBeLessThan(step.estimateMs!);
        expect([step.phases, step.estimateMs]).toEqual([without.phases, without.estimateMs]);
      }
    });

    it('is that of the pass where that is the fuller one, as when all but the last layer is frozen', () => {
      const frozen = { model: { ...model, freeze: ['transformer.*', 'embedding.*'] } };
      const strategy = { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP' };
      const plan = planOf({ ...frozen, strategy });
      expect(plan.liveBytes).toBe(plan.validation!.liveBytes);
      expect(plan.byCategory).toEqual(plan.validation!.byCategory);
      expect(plan.liveBytes).toBeGreaterThan(Math.max(...plan.phases.map((phase) => phase.liveBytes)));
      expect(plan.phases.map(({ phase }) => phase)).toEqual(['forward', 'backward', 'optimizer']);
      expect(plan.peakBytes).toBeGreaterThanOrEqual(plan.liveBytes);
    });
  });

  it('of several batch shapes is that of the fullest, over one memory', () => {
    const shapes = [
      { batch: 1, tokens: 2 },
      { batch: 3, tokens: 7 },
      { batch: 2, tokens: 3 },
    ];
    const run = compileFirst({ shapes });
    const alone = shapes.map((shape) => predictionOf(compileFirst({ shapes: [shape] }), interpreter));
    const together = predictionOf(run, interpreter);
    // A little more: each shape has its own positional row.
    expect(together.liveBytes).toBeGreaterThanOrEqual(Math.max(...alone.map((p) => p.liveBytes)));
    expect(together.liveBytes).toBeLessThan(1.1 * Math.max(...alone.map((p) => p.liveBytes)));
    expect(run.steps.map((s) => s.schedule.regions)).toEqual(run.steps.map(() => run.regions));
  });

  it('needs the batch shapes of a batches file, and a vocabulary', () => {
    const batches = parseConfig({ model: smallModel, data: { kind: 'batches', path: 'b.json' } });
    expect(() => planExperiment(batches, software)).toThrow(/data.kind: the shapes of a batches file/);
    expect(planExperiment(batches, software, null, [{ batch: 1, tokens: 4 }]).params).toBeGreaterThan(0);
    const open = parseConfig({});
    expect(() => planExperiment(open, software)).toThrow(/model.vocabSize/);
    expect(planExperiment(open, software, 33_278).params).toBe(14_635_678);
    expect(() =>
      planExperiment(parseConfig({ model: { kind: 'demo-transformer', vocabSize: 5 } }), software, 6),
    ).toThrow(StudioError);
    expect(shapeOfData(open.data)).toEqual({ batch: 1, tokens: 35 });
  });

  it('is less per rank with more ranks, and less sharded than replicated', () => {
    const peak = (devices: number, strategy: string) =>
      planExperiment(parseConfig({ model: { kind: 'demo-transformer', vocabSize: 2000 }, devices, strategy }), h200)
        .peakBytes;
    expect(peak(2, 'fsdp')).toBeLessThan(peak(2, 'ddp'));
    expect(peak(4, 'fsdp')).toBeLessThan(peak(2, 'fsdp'));
    expect(peak(8, 'fsdp')).toBeLessThan(peak(4, 'fsdp'));
  });
});

describe('the time estimate', () => {
  const { schedule } = compileFirst({ config: { strategy: 'fsdp' } }).steps[0];

  it('begins no step before its lane has, and ends none before what it waits for', () => {
    const { startSeconds, endSeconds, totalSeconds } = estimate(schedule, software);
    const begun: Record<string, number> = {};
    for (const step of schedule.steps) {
      expect(endSeconds[step.id]).toBeGreaterThanOrEqual(startSeconds[step.id]);
      expect(startSeconds[step.id]).toBeGreaterThanOrEqual(begun[step.lane] ?? 0);
      // The device takes what is submitted in its order, so a copy may be filled while what it waits for is still to run.
      // What a publication reads on the device is free once it is submitted, before the host has copied it out.
      for (const wait of step.waits) {
        const over = schedule.steps[wait].action.type === 'publish' ? startSeconds : endSeconds;
        expect(endSeconds[step.id]).toBeGreaterThanOrEqual(over[wait]);
      }
      begun[step.lane] = startSeconds[step.id];
    }
    expect(totalSeconds).toBe(Math.max(...endSeconds));
  });

  it('never has two kernels on the device at once', () => {
    const { startSeconds, endSeconds } = estimate(schedule, software);
    const kernels = schedule.steps.filter(({ action }) => action.type === 'dispatch');
    kernels.reduce((before, step) => {
      expect(startSeconds[step.id]).toBeGreaterThanOrEqual(endSeconds[before.id]);
      return step;
    });
  });

  it('is made of what its longest chain of waits goes into, and says what is most', () => {
    const { iterationSeconds, critical } = estimate(schedule, software);
    expect(RESOURCES.reduce((sum, r) => sum + critical[r], 0)).toBeCloseTo(iterationSeconds, 12);
    const most = (change: Partial<AdapterProfile>) => boundBy(estimate(schedule, { ...software, ...change }).critical);
    expect(most({ kernels: scaled({ flopsPerSecond: 1e-9 }) })).toBe('compute');
    expect(most({ kernels: scaled({ bytesPerSecond: 1e-9 }) })).toBe('memory');
    expect(most({ dispatchSeconds: 1 })).toBe('dispatches');
    expect(most(copying(software, { uploadBytesPerSecond: 1e3 }))).toBe('uploads');
    expect(most(copying(software, { downloadBytesPerSecond: 1e3 }))).toBe('downloads');
    expect(most(copying(software, { hostCopyBytesPerSecond: 1e3 }))).toBe('downloads');
  });

  it('has the host encode beside the device: the longer of the two counts', () => {
    const alone = compileFirst({ config: { devices: 1 } }).steps[0].schedule;
    const instant = estimate(alone, { ...software, dispatchSeconds: 1e-12 });
    const count = alone.steps.filter(({ action }) => action.type === 'dispatch').length;
    const { seconds } = software.kernels.elements;
    const asFast = estimate(alone, { ...software, dispatchSeconds: seconds });
    expect(asFast.totalSeconds).toBeLessThan(instant.totalSeconds + (count * seconds) / 2);
    const slow = estimate(alone, { ...software, dispatchSeconds: 1 });
    expect(slow.totalSeconds).toBeGreaterThan(count);
    expect(slow.totalSeconds).toBeLessThan(count + 10);
  });

  it('is of a step that the host began during the one before: the longer of the host and the device', () => {
    const alone = compileFirst({ config: { devices: 1 } }).steps[0].schedule;
    const slowHost = estimate(alone, { ...software, dispatchSeconds: 1, submitSeconds: 1e-6 });
    const count = alone.steps.filter(({ action }) => action.type === 'dispatch').length;
    expect(slowHost.iterationSeconds).toBeCloseTo(count, 0);
    const even = { ...software, dispatchSeconds: 1e-3, kernels: scaled({ seconds: 1e-3 / 20e-6 }) };
    const { totalSeconds, iterationSeconds } = estimate(alone, even);
    expect(iterationSeconds).toBeLessThan(totalSeconds);
    expect(iterationSeconds).toBeGreaterThan(count * 1e-3);
    const slowDevice = estimate(alone, { ...software, kernels: scaled({ seconds: 1e5 }) });
    expect(slowDevice.iterationSeconds).toBeCloseTo(2 * count, -1);
  });

  it('counts what a submit and a piece cost beside their dispatches and their bytes', () => {
    const base = estimate(schedule, software).iterationSeconds;
    const visits = new Set(schedule.steps.filter(({ lane }) => lane === 'compute').map(({ visit }) => visit)).size;
    const pieces = schedule.steps.filter(({ action }) => ['publish', 'collect'].includes(action.type)).length;
    const submits = estimate(schedule, { ...software, submitSeconds: 1 }).iterationSeconds;
    expect(submits).toBeGreaterThan(visits);
    const gaps = estimate(schedule, { ...software, submitGapSeconds: 1 }).iterationSeconds;
    expect(gaps).toBeGreaterThan(visits - 1);
    const slow = estimate(schedule, { ...software, ...copying(software, { pieceSeconds: 1 }) }).iterationSeconds;
    expect(slow).toBeGreaterThan(pieces);
    const far = estimate(schedule, { ...software, ...copying(software, { roundTripSeconds: 1 }) }).iterationSeconds;
    for (const more of [submits, gaps, slow, far]) expect(more).toBeGreaterThan(base + 1);
  });

  it('has a staging slot that the step before took free again only once the host knows of it', () => {
    const { steps } = compileFirst({ config: { devices: 1, strategy: 'fsdp_cpu_offload' } }).steps[0].schedule;
    const [fetch] = steps.filter(({ action }) => action.type === 'fetch').map((s) => ({ ...s, id: 0, waits: [] }));
    const far = { ...software, ...copying(software, { roundTripSeconds: 1 }) };
    expect(estimate({ steps: [fetch], world: 1 }, far).iterationSeconds).toBeGreaterThan(1);
  });

  it('counts all that row sums read, whose parameters do not say how long the rows are', () => {
    const { steps } = schedule;
    const sums = steps.flatMap(({ action }) => dispatches(action)).filter(({ kernel }) => kernel === rowSquareSums);
    expect(sums.length).toBeGreaterThan(0);
    for (const dispatch of sums)
      expect(bytesMoved(dispatch)).toBe(dispatch.operands.reduce((total, { bytes }) => total + bytes, 0));
  });

  it('has the device copy both ways one after the other', () => {
    const offloaded = compileFirst({ config: { devices: 1, strategy: 'fsdp_cpu_offload' } }).steps[0].schedule;
    const bytes = { up: 0, down: 0 };
    for (const { action } of offloaded.steps) {
      if (action.type === 'collect' || action.type === 'fetch') bytes.up += action.staging.bytes;
      if (action.type === 'store') bytes.down += action.staging.bytes;
      if (action.type === 'keep') for (const { device } of action.parts) bytes.down += device.bytes;
    }
    const slow = copying(software, { placeBytesPerSecond: 1e3, downloadBytesPerSecond: 2e3 });
    const { iterationSeconds, critical } = estimate(offloaded, { ...software, ...slow });
    const seconds = bytes.up / 1e3 + bytes.down / 2e3;
    expect(iterationSeconds).toBeGreaterThan(seconds);
    expect(iterationSeconds).toBeLessThan(1.1 * seconds);
    expect(critical.uploads + critical.downloads).toBeGreaterThan(0.9 * iterationSeconds);
  });

  it('takes the rates of as many processes as there are ranks', () => {
    const [copies] = software.copies;
    const two = { ...copies, processes: 2, uploadBytesPerSecond: 1e5, hostCopyBytesPerSecond: 1e5 };
    const profile = { ...software, copies: [copies, two] };
    const ofRanks = (devices: number) =>
      estimate(compileFirst({ config: { devices, strategy: 'fsdp_cpu_offload' } }).steps[0].schedule, profile);
    expect(ofRanks(2).iterationSeconds).toBeGreaterThan(10 * ofRanks(1).iterationSeconds);
  });

  it('waits for what the peers publish when this rank does', () => {
    const { startSeconds, endSeconds } = estimate(schedule, {
      ...software,
      ...copying(software, { downloadBytesPerSecond: 1e5 }),
    });
    for (const step of schedule.steps) {
      const { action } = step;
      if (action.type !== 'collect') continue;
      const own = schedule.steps.findLast(
        (s) => s.id < step.id && s.action.type === 'publish' && s.action.region === action.region,
      );
      expect(startSeconds[step.id]).toBeGreaterThanOrEqual(endSeconds[own!.id]);
    }
  });

  it('counts ranks that share an adapter: all of a software one, of GPUs those beyond their number', () => {
    const ranks = 4;
    expect(ranksPerAdapter(software, ranks)).toBe(4);
    expect(ranksPerAdapter(h200, ranks)).toBe(1);
    expect(ranksPerAdapter({ ...h200, alike: 3 }, ranks)).toBe(2);
    const slow = { ...software, kernels: scaled({ seconds: 1000 }) };
    const [one, two] = [1, 2].map((sharing) => estimate(schedule, slow, sharing).totalSeconds);
    expect(two / one).toBeGreaterThan(1.9);
    expect(two / one).toBeLessThanOrEqual(2);
  });

  it('counts an operand of halves as half of what it would be', () => {
    const slow = { ...h200, kernels: scaled({ bytesPerSecond: 1e-6 }, h200) };
    const seconds = (['32-true', '16-true'] as const).map((precision) => {
      const { steps } = compileFirst({ config: { devices: 1, precision } }).steps[0].schedule;
      const matmuls = steps.filter(({ label }) => label.startsWith('matmul-nt-bias'));
      return estimate({ steps: matmuls.map((step, id) => ({ ...step, id, waits: [] })), world: 1 }, slow).totalSeconds;
    });
    // Weights and inputs are halves, outputs are not yet.
    expect(seconds[1] / seconds[0]).toBeGreaterThan(0.5);
    expect(seconds[1] / seconds[0]).toBeLessThan(0.85);
  });

  it('is finite and never below zero, at any step, over any link', () => {
    const hybrid = { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2] };
    const strategies = [
      'ddp',
      'fsdp',
      'fsdp_cpu_offload',
      hybrid,
      { ...hybrid, linkGBps: 1e-3 },
      { ...hybrid, linkGBps: 1e6 },
    ];
    for (const strategy of strategies) {
      const [{ schedule: own }] = compileFirst({ config: { devices: 4, strategy } }).steps;
      const { startSeconds, endSeconds, totalSeconds } = estimate(own, software);
      own.steps.forEach(({ id }) => {
        expect(startSeconds[id]).toBeGreaterThanOrEqual(0);
        expect(endSeconds[id]).toBeGreaterThanOrEqual(startSeconds[id]);
      });
      expect(totalSeconds).toBeGreaterThan(0);
      expect(Number.isFinite(totalSeconds)).toBe(true);
    }
  });

  it('is longer over a slower link between rows, and says that the link is what it waits for', () => {
    const [slow, fast, none] = [1e-5, 1e-4, null].map((linkGBps) => {
      const strategy = { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2], linkGBps };
      return estimate(compileFirst({ config: { devices: 4, strategy } }).steps[0].schedule, h200);
    });
    expect(slow.totalSeconds).toBeGreaterThan(fast.totalSeconds);
    expect(fast.totalSeconds).toBeGreaterThan(none.totalSeconds);
    expect(boundBy(slow.critical)).toBe('link');
    expect(none.critical.link).toBe(0);
  });

  it('falls as any rate of the adapter rises', () => {
    const base = estimate(schedule, software).iterationSeconds;
    const faster: Partial<AdapterProfile>[] = [
      { kernels: scaled({ flopsPerSecond: 10 }) },
      { kernels: scaled({ bytesPerSecond: 10 }) },
      { kernels: scaled({ seconds: 0.1 }) },
      ...(['uploadBytesPerSecond', 'downloadBytesPerSecond', 'hostCopyBytesPerSecond'] as const).map((rate) =>
        copying(software, { [rate]: software.copies[0][rate] * 10 }),
      ),
    ];
    for (const change of faster)
      expect(estimate(schedule, { ...software, ...change }).iterationSeconds).toBeLessThanOrEqual(base);
    expect(estimate(schedule, { ...software, dispatchSeconds: 1e-9 }).iterationSeconds).toBeLessThan(base);
  });
});

/** The rates of a profile's kernels, each times a factor. */
function scaled(factors: Partial<KernelRate>, { kernels }: AdapterProfile = software): AdapterProfile['kernels'] {
  const { seconds = 1, flopsPerSecond = 1, bytesPerSecond = 1 } = factors;
  const entries = Object.entries(kernels).map(([name, rate]) => [
    name,
    {
      seconds: rate.seconds * seconds,
      flopsPerSecond: rate.flopsPerSecond * flopsPerSecond,
      bytesPerSecond: rate.bytesPerSecond * bytesPerSecond,
    },
  ]);
  return Object.fromEntries(entries);
}

describe('a profile', () => {
  it('takes limits from the adapter and rates from the nearest built-in one', () => {
    const limits = {
      minStorageBufferOffsetAlignment: 32,
      maxStorageBufferBindingSize: 2 ** 30,
      maxBufferSize: 2 ** 50,
    };
    const gpu = profileOf({ name: 'a GPU', software: false, limits });
    expect(gpu).toMatchObject({ name: 'a GPU', software: false, offsetAlignmentBytes: 32, maxBindingBytes: 2 ** 30 });
    expect(gpu.maxBufferBytes).toBe(32 * 2 ** 30);
    expect(ratesOf(gpu)).toEqual(ratesOf(h200));
    expect(ratesOf(profileOf({ name: 'cpu', software: true, limits }))).toEqual(ratesOf(software));
    const rates = { ...ratesOf(h200), dispatchSeconds: 5 };
    const measured = profileOf({ name: 'a GPU', software: false, limits }, rates);
    expect([ratesOf(measured), measured.calibrated, gpu.calibrated]).toEqual([rates, true, undefined]);
  });
});
