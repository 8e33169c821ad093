import { describe, expect, it } from 'vitest';
import { openInProcessMailboxes } from '../comm/in-process.ts';
import { parseConfig } from '../config.ts';
import { holdOut } from '../data/held-out.ts';
import { createBlockStream } from '../data/samples.ts';
import { Interpreter } from '../interpret/interpreter.ts';
import { buildModel } from '../model/build-model.ts';
import { compileRun } from '../schedule/compile.ts';
import { liveBytes } from '../schedule/memory.ts';
import { builtInProfiles } from '../schedule/profile.ts';
import { Recorder } from '../schedule/recorder.ts';
import { fromWire, type RunEvent } from '../trainer/events.ts';
import { fillRank, freshParameters } from '../trainer/state.ts';
import { trainerRegions, trainRank } from '../trainer/train-rank.ts';
import { folderStore } from './checkpoint-store.ts';

const words = 23;
const tokens = Int32Array.from({ length: 900 }, (_, i) => (i * i + 3 * i) % words);
const corpus = { kind: 'wikitext2' as const, path: 'made up', tokens, words: [], vocabSize: words, sha256: '' };
const model = { kind: 'demo-transformer', ninp: 8, nhead: 2, nhid: 12, nlayers: 2, dropout: 0.1 };
const data = { kind: 'wikitext2', path: 'made up', blockSize: 7, batchSize: 2, validationFraction: 0.2 };

/** Trains all ranks of a config on the interpreter; the events of rank 0 and the recorders. */
async function trained(extra: object) {
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
  const recorders = runs.map(() => new Recorder());
  const events: RunEvent[] = [];
  const results = await Promise.all(
    runs.map(async (run, rank) => {
      const engine = new Interpreter(run, mailboxes[rank], { poison: true, recorder: recorders[rank] });
      await fillRank(engine, run, freshParameters(trainer.seed));
      return trainRank({
        config,
        run,
        engine,
        mailbox: mailboxes[rank],
        batches: stream(parts.training as typeof corpus),
        validation: trainer.validateEvery === null ? null : stream(parts.validation as typeof corpus),
        checkpoints: folderStore('/nothing/is/saved/here'),
        emit: (event) => rank === 0 && events.push(event),
        stopRequested: () => false,
        onPhase: () => undefined,
      });
    }),
  );
  const losses = events.flatMap((e) => (e.event === 'step' && e.rank === 0 ? [fromWire(e.lossMean)] : []));
  const validation = events.flatMap((e) =>
    e.event === 'validation' ? [{ step: e.step, loss: fromWire(e.loss) }] : [],
  );
  return { runs, recorders, losses, validation, stepsByShape: results[0].stepsByShape };
}

const strategies = {
  ddp: 'ddp',
  FULL_SHARD: 'fsdp',
  SHARD_GRAD_OP: { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP' },
  offload: 'fsdp_cpu_offload',
};

describe('validation every 2 steps', () => {
  it('is the same under every strategy and changes no bit of training', async () => {
    const trainer = { steps: 6, validateEvery: 2, validateBatches: 3 };
    const without = await trained({ devices: 2, strategy: 'ddp', trainer: { steps: 6 } });
    const reference = await trained({ devices: 2, strategy: 'ddp', trainer });
    expect(reference.validation.map((v) => v.step)).toEqual([1, 3, 5]);
    expect(reference.losses).toEqual(without.losses);
    expect([without.stepsByShape, reference.stepsByShape]).toEqual([[6], [6, 9]]);
    for (const [name, strategy] of Object.entries(strategies)) {
      const run = await trained({ devices: 2, strategy, trainer });
      expect(run.losses, name).toEqual(reference.losses);
      expect(run.validation, name).toEqual(reference.validation);
    }
  });

  it('keeps one unit or two under FULL_SHARD, all of them to the end under SHARD_GRAD_OP', async () => {
    const trainer = { steps: 2, validateEvery: 2, validateBatches: 1 };
    const most = async (strategy: object | string) => {
      const { runs } = await trained({ devices: 2, strategy, trainer });
      const { schedule } = runs[0].steps[runs[0].evaluation!];
      return Math.max(...liveBytes(schedule).map((b) => b.gathered));
    };
    const { runs } = await trained({ devices: 2, strategy: 'fsdp', trainer });
    const whole = runs[0].steps[0].groups.reduce((sum, g) => sum + g.layout.fullElements * 4, 0);
    expect(await most(strategies.SHARD_GRAD_OP)).toBe(whole);
    expect(await most('fsdp')).toBeLessThan(whole);
  });

  it('needs a held-out part', () => {
    expect(() => parseConfig({ trainer: { validateEvery: 2 } })).toThrow(/validationFraction/);
  });
});
