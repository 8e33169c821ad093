import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openInProcessMailboxes } from '../comm/in-process.ts';
import { parseConfig } from '../config.ts';
import { holdOut } from '../data/held-out.ts';
import { createBlockStream } from '../data/samples.ts';
import { Interpreter } from '../interpret/interpreter.ts';
import { buildModel } from '../model/build-model.ts';
import { compileRun } from '../schedule/compile.ts';
import { smallModel } from '../schedule/fixtures/small-runs.ts';
import { liveBytes } from '../schedule/memory.ts';
import { builtInProfiles } from '../schedule/profile.ts';
import { fromWire, type RunEvent } from '../trainer/events.ts';
import { fillRank, freshParameters, heldParts } from '../trainer/state.ts';
import { trainerRegions, trainRank } from '../trainer/train-rank.ts';
import { folderStore } from './checkpoint-store.ts';
import { expectAsPlanned } from './fixtures/laws.ts';
import { interpreterPlace, openRanks, softwareGpuPlace } from './fixtures/reference-run.ts';

const words = 23;
const tokens = Int32Array.from({ length: 900 }, (_, i) => (i * i + 3 * i) % words);
const corpus = { kind: 'wikitext2' as const, path: 'made up', tokens, words: [], vocabSize: words, sha256: '' };
const model = { kind: 'demo-transformer', ninp: 8, nhead: 2, nhid: 12, nlayers: 2, dropout: 0.1 };
const data = { kind: 'wikitext2', path: 'made up', blockSize: 7, batchSize: 2, validationFraction: 0.2 };

/** Trains all ranks of a config on the interpreter: their steps, what rank 0 said of validation, the weights that are left. */
async function trained(extra: object, asked: { stop?: boolean; save?: boolean } = {}) {
  const config = parseConfig({ model, data, checkpoint: { atEnd: false }, ...extra });
  const { devices, trainer } = config;
  const parts = holdOut(corpus, 0.2);
  const stream = (part: typeof corpus) =>
    createBlockStream(part, { blockSize: 7, batchSize: 2, seed: 1, ranks: devices, accumulateGradBatches: 1 });
  const built = buildModel(config.model, words);
  const shapes = [{ batch: 2, tokens: 7 }];
  const runs = Array.from({ length: devices }, (_, rank) =>
    compileRun({ config, model: built, shapes, rank, profile: builtInProfiles.interpreter }),
  );
  const mailboxes = openInProcessMailboxes(devices, trainerRegions(runs[0]));
  const engines = runs.map((run, rank) => new Interpreter(run, mailboxes[rank], { poison: true }));
  const events: RunEvent[] = [];
  const phases = runs.map((): string[] => []);
  const results = await Promise.all(
    runs.map(async (run, rank) => {
      await fillRank(engines[rank], run, freshParameters(trainer.seed));
      return trainRank({
        config,
        run,
        engine: engines[rank],
        mailbox: mailboxes[rank],
        batches: stream(parts.training as typeof corpus),
        validation: trainer.validateEvery === null ? null : stream(parts.validation as typeof corpus),
        checkpoints: folderStore('/nothing/is/saved/here'),
        emit: (event) => events.push(event),
        // The last rank is asked as soon as it validates.
        stopRequested: () => asked.stop === true && rank === devices - 1 && phases[rank].includes('validating'),
        savesRequested: () => (asked.save && rank === devices - 1 && phases[rank].includes('validating') ? 1 : 0),
        onPhase: (phase) => phases[rank].push(phase),
      });
    }),
  );
  const steps = events.flatMap((e) =>
    e.event === 'step' ? [{ rank: e.rank, step: e.step, loss: fromWire(e.loss), gradNorm: fromWire(e.gradNorm) }] : [],
  );
  steps.sort((a, b) => a.step - b.step || a.rank - b.rank);
  const parameters = new Map<string, Float32Array>();
  for (const [rank, run] of runs.entries())
    for (const group of run.steps[0].groups)
      for (const { spec, first, count, offsetBytes } of heldParts(run, group))
        parameters.set(
          `${spec.name} ${first}`,
          await engines[rank].read(group.parameters.name, offsetBytes, count * 4),
        );
  const validation = events.flatMap((e) =>
    e.event === 'validation' ? [{ step: e.step, loss: fromWire(e.loss) }] : [],
  );
  return { runs, steps, validation, phases, parameters, stepsByShape: results[0].stepsByShape };
}

const fsdp = (settings: object) => ({ kind: 'fsdp', ...settings });
const rows = { deviceMesh: [2, 2] };
/** Every strategy beside DDP, by the ranks it takes. */
const strategies: Record<2 | 4, Record<string, object>> = {
  2: {
    NO_SHARD: fsdp({ shardingStrategy: 'NO_SHARD' }),
    SHARD_GRAD_OP: fsdp({ shardingStrategy: 'SHARD_GRAD_OP' }),
    FULL_SHARD: fsdp({}),
    'offloaded NO_SHARD': fsdp({ shardingStrategy: 'NO_SHARD', cpuOffload: true }),
    'offloaded SHARD_GRAD_OP': fsdp({ shardingStrategy: 'SHARD_GRAD_OP', cpuOffload: true }),
    'offloaded FULL_SHARD': fsdp({ cpuOffload: true }),
  },
  4: {
    HYBRID_SHARD: fsdp({ shardingStrategy: 'HYBRID_SHARD', ...rows }),
    HYBRID_SHARD_ZERO2: fsdp({ shardingStrategy: 'HYBRID_SHARD_ZERO2', ...rows }),
    'offloaded HYBRID_SHARD': fsdp({ shardingStrategy: 'HYBRID_SHARD', ...rows, cpuOffload: true }),
  },
};

describe('validation every 2 steps', () => {
  it.each([2, 4] as const)(
    'of %i ranks is the same under every strategy and changes no bit of training',
    async (devices) => {
      const trainer = { steps: 6, validateEvery: 2, validateBatches: 3 };
      const reference = await trained({ devices, strategy: 'ddp', trainer });
      expect(reference.validation.map((v) => v.step)).toEqual([1, 3, 5]);
      for (const [name, strategy] of Object.entries({ DDP: { kind: 'ddp' }, ...strategies[devices] })) {
        const [without, run] = [
          await trained({ devices, strategy, trainer: { steps: 6 } }),
          await trained({ devices, strategy, trainer }),
        ];
        expect([without.stepsByShape, run.stepsByShape]).toEqual([[6], [6, 9]]);
        expect(run.steps, name).toEqual(without.steps);
        expect(run.steps, name).toEqual(reference.steps);
        expect(run.parameters, name).toEqual(without.parameters);
        expect(run.validation, name).toEqual(reference.validation);
      }
    },
  );

  it('keeps one unit or two under FULL_SHARD, all of them to the end under SHARD_GRAD_OP', async () => {
    const trainer = { steps: 2, validateEvery: 2, validateBatches: 1 };
    const most = async (strategy: object | string) => {
      const { runs } = await trained({ devices: 2, strategy, trainer });
      const { schedule } = runs[0].steps[runs[0].evaluation!];
      return Math.max(...liveBytes(schedule).map((b) => b.gathered));
    };
    const { runs } = await trained({ devices: 2, strategy: 'fsdp', trainer });
    const whole = runs[0].steps[0].groups.reduce((sum, g) => sum + g.layout.fullElements * 4, 0);
    expect(await most(strategies[2].SHARD_GRAD_OP)).toBe(whole);
    expect(await most('fsdp')).toBeLessThan(whole);
  });

  it('hears what is asked for between two batches: a stop ends it, a save is made', async () => {
    const config = { devices: 2, strategy: 'fsdp', trainer: { steps: 6, validateEvery: 2, validateBatches: 3 } };
    const stopped = await trained(config, { stop: true });
    expect([stopped.stepsByShape, stopped.validation]).toEqual([[2, 1], []]);
    const saved = await trained(config, { save: true });
    for (const phases of saved.phases)
      expect(phases.slice(0, 6)).toEqual(['training', 'training', 'validating', 'saving', 'validating', 'training']);
    expect(saved.validation).toEqual((await trained(config)).validation);
  });

  it('has a bound on its batches', () => {
    expect(() => parseConfig({ trainer: { validateBatches: 1e9 } })).toThrow(/validateBatches/);
  });

  it('needs a held-out part', () => {
    expect(() => parseConfig({ trainer: { validateEvery: 2 } })).toThrow(/validationFraction/);
  });
});

const keepsGathered = (strategy: object) =>
  'shardingStrategy' in strategy &&
  ['SHARD_GRAD_OP', 'HYBRID_SHARD_ZERO2'].includes(strategy.shardingStrategy as string);

describe.each(['interpreter', 'a software GPU'])('a pass over held-out data, on %s', (placeName) => {
  let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
  beforeAll(async () => {
    if (placeName !== 'interpreter') gpu = await softwareGpuPlace();
  });
  afterAll(() => gpu?.device.close());

  const cases = ([2, 4] as const).flatMap((devices) =>
    Object.entries({ DDP: { kind: 'ddp' }, ...strategies[devices] }).map(
      ([name, strategy]): [string, number, object] => [name, devices, strategy],
    ),
  );
  it.each(cases)(
    '%s of %i ranks: touches what was planned for it, and leaves what training holds',
    async (_, devices, strategy) => {
      const ranks = await openRanks(placeName === 'interpreter' ? interpreterPlace : gpu, {
        config: { model: smallModel, devices, strategy, data, trainer: { validateEvery: 1 } },
        shape: { batch: 2, tokens: 3 },
        batch: (step, rank) => ({ input: [1, 2, rank, 4, 5, step], target: [2, rank, 4, 5, 6, 7] }),
      });
      await ranks.train(1);
      const [before, passAt] = [await ranks.parameters(), 7];
      const losses = await Promise.all(
        ranks.engines.map(async (engine, rank) => {
          const batches = {
            inputs: [Uint32Array.of(1, 2, 3, 4, 5, rank)],
            targets: [Uint32Array.of(2, 3, 4, 5, 6, 7)],
          };
          const shapeIndex = ranks.runs[rank].evaluation!;
          const feed = { step: passAt, shapeIndex, ...batches, lrFactor: 1, stopRequested: () => false };
          return (await engine.start(feed).outcome).loss;
        }),
      );
      expect(losses.every((loss) => Number.isFinite(loss) && loss > 0)).toBe(true);
      expect(await ranks.parameters()).toEqual(before);
      ranks.runs.forEach((run, rank) => {
        const { schedule } = run.steps[run.evaluation!];
        ranks.recorders[rank].check(passAt, schedule);
        // The tables of a step of training stay.
        const own = new Set(schedule.tensors.map(({ name }) => name));
        const tables = run.steps[0].schedule.tensors.filter(({ name, state }) => state && !own.has(name));
        expect(tables.every(({ contents, category }) => contents && category === 'workspace')).toBe(true);
        const more = tables.reduce((sum, { bytes }) => sum + bytes, 0);
        const planned = liveBytes(schedule).map((live) => ({ ...live, workspace: live.workspace + more }));
        const measured = ranks.recorders[rank].liveBytes(passAt, schedule.steps.length);
        if (!keepsGathered(strategy)) {
          expect(measured).toEqual(planned);
          return;
        }
        // Units stay to the end of the pass, which no touch shows: after its last one a unit is only planned.
        expect(measured.filter((live, step) => live.gathered > planned[step].gathered)).toEqual([]);
        const besideGathered = (live: (typeof planned)[number]) => ({ ...live, gathered: 0 });
        expect(measured.map(besideGathered)).toEqual(planned.map(besideGathered));
      });
      for (const [rank, { memory }] of ranks.runs.entries())
        expect(ranks.engines[rank].memory()).toMatchObject({
          currentBytes: memory.reservedBytes,
          peakBytes: memory.reservedBytes,
        });
      await ranks.train(2, 1);
      expectAsPlanned(ranks, [1]);
      await ranks.close();
    },
  );
});
