import { openInProcessMailboxes } from '../engine/comm/in-process.ts';
import type { Mailbox } from '../engine/comm/mailbox.ts';
import { parseConfig } from '../engine/config.ts';
import { Interpreter } from '../engine/interpret/interpreter.ts';
import { buildModel } from '../engine/model/build-model.ts';
import { openAdapter } from '../engine/node/adapters.ts';
import { calibrate } from '../engine/node/calibrate.ts';
import { adapterProfile, openDevice } from '../engine/runtime/device.ts';
import { Executor } from '../engine/runtime/executor.ts';
import { type CompiledRun, compileRun } from '../engine/schedule/compile.ts';
import { predictionOf } from '../engine/schedule/plan.ts';
import { type AdapterProfile, builtInProfiles } from '../engine/schedule/profile.ts';
import type { RankEngine } from '../engine/schedule/rank-engine.ts';
import { fillRank, freshParameters } from '../engine/trainer/state.ts';
import { timesOf } from './measure.ts';
import { optionsOf } from './options.ts';
import { acrossTheLink, linkBytes, MACHINES } from './slow-link-plan.ts';

const SHAPE = { batch: 1, tokens: 35 };
const MODEL = { kind: 'demo-transformer', vocabSize: 499, ninp: 64, nhead: 4, nhid: 256, nlayers: 2 };
const [MACHINE_COUNT, RANKS_EACH] = MACHINES;

/**
 * FULL_SHARD beside HYBRID_SHARD on two machines of two ranks, all in this process: within a machine bytes pass as they do, between
 * machines at the link's rate, a link for each rank. Links as slow as the ranks are, so that their time is what differs.
 * Arguments: --adapter NAME (interpreter), --link A,B,… (GB/s), --steps N (4, of which one is not counted).
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = optionsOf(args);
  const links = option('link', '0.0002,0.0005,0.002').split(',').map(Number);
  const steps = Number(option('steps', '4'));
  const place = await placeOf(option('adapter', 'interpreter'));
  console.log(
    `${place.name}, ${MACHINE_COUNT} machines of ${RANKS_EACH} ranks, ${SHAPE.batch} x ${SHAPE.tokens} tokens`,
  );
  console.log(line(['link GB/s', 'strategy', 'over it MB', 'predicted ms', 'median ms', 'min', 'max', 'ratio']));
  for (const link of links) {
    const medians: number[] = [];
    const predictions: number[] = [];
    for (const strategy of ['FULL_SHARD', 'HYBRID_SHARD'] as const) {
      const row = await measured(place, strategy, link, steps);
      medians.push(row.times.medianMs);
      predictions.push(row.predictedMs);
      const { medianMs, minMs, maxMs } = row.times;
      const figures = [row.predictedMs, medianMs, minMs, maxMs].map((ms) => ms.toFixed(0));
      const ratio = (row.predictedMs / medianMs).toFixed(2);
      console.log(line([String(link), strategy, (row.bytes / 1e6).toFixed(2), ...figures, ratio]));
    }
    const [predicted, found] = [predictions, medians].map(([full, hybrid]) => (full / hybrid).toFixed(2));
    console.log(line([String(link), 'full/hybrid', '', predicted, found]));
  }
}

/** What runs a rank: the interpreter, or one device that all of them share. */
interface Place {
  readonly name: string;
  readonly profile: AdapterProfile;
  readonly open: (run: CompiledRun, mailbox: Mailbox) => Promise<RankEngine>;
}

/** An adapter's rates are measured first; the interpreter has those of its profile. */
async function placeOf(wanted: string): Promise<Place> {
  if (wanted === 'interpreter')
    return {
      name: wanted,
      profile: builtInProfiles.interpreter,
      open: async (run, mailbox) => new Interpreter(run, mailbox),
    };
  const { adapter, entry } = await openAdapter(wanted);
  const rates = await calibrate([entry.id]);
  const device = await openDevice(adapter);
  return {
    name: entry.name,
    profile: adapterProfile(adapter, entry.name, entry.software, rates),
    open: (run, mailbox) => Executor.create(run, device, mailbox),
  };
}

async function measured(place: Place, shardingStrategy: string, linkGBps: number, steps: number) {
  const isHybrid = shardingStrategy === 'HYBRID_SHARD';
  const config = parseConfig({
    model: MODEL,
    devices: MACHINE_COUNT * RANKS_EACH,
    strategy: { kind: 'fsdp', shardingStrategy, ...(isHybrid ? { deviceMesh: MACHINES, linkGBps } : {}) },
  });
  const model = buildModel(config.model, null);
  const runs = Array.from({ length: config.devices }, (_, rank) => {
    const run = compileRun({ config, model, shapes: [SHAPE], rank, profile: place.profile });
    return isHybrid ? run : acrossTheLink(run, linkGBps);
  });
  const mailboxes = openInProcessMailboxes(config.devices, runs[0].regions);
  const engines = await Promise.all(runs.map((run, rank) => place.open(run, mailboxes[rank])));
  try {
    const { seed } = config.trainer;
    await Promise.all(engines.map((engine, rank) => fillRank(engine, runs[rank], freshParameters(seed))));
    const ids = Uint32Array.from({ length: SHAPE.tokens }, (_, i) => (i * 7919) % MODEL.vocabSize);
    const ms: number[] = [];
    for (let step = 0; step < steps; step++) {
      const from = performance.now();
      const feed = { step, shapeIndex: 0, inputs: [ids], targets: [ids], lrFactor: 1, stopRequested: () => false };
      await Promise.all(engines.map((engine) => engine.start(feed).outcome));
      ms.push(performance.now() - from);
    }
    return {
      bytes: linkBytes(runs[0]),
      predictedMs: predictionOf(runs[0], place.profile).estimateMs ?? Number.NaN,
      times: timesOf(ms.slice(1)),
    };
  } finally {
    await Promise.all(engines.map((engine) => engine.close()));
  }
}

function line(cells: readonly string[]): string {
  const widths = [9, 12, 10, 12, 9, 6, 6, 6];
  return cells.map((cell, i) => (i === 1 ? cell.padEnd(widths[i]) : cell.padStart(widths[i]))).join(' ');
}
