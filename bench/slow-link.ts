import { discoverAdapters, findAdapter } from '../engine/node/adapters.ts';
import { calibrateInChild } from '../engine/node/calibrate.ts';
import { gpuPlace, interpreterPlace, openRanks, type Place } from '../engine/node/fixtures/reference-run.ts';
import type { CompiledRun } from '../engine/schedule/compile.ts';
import { predictionOf } from '../engine/schedule/plan.ts';
import { timesOf } from './measure.ts';
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
  const option = (name: string, otherwise: string) => args[args.indexOf(`--${name}`) + 1 || args.length] ?? otherwise;
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

/** Where the ranks run; an adapter's rates are measured first, the interpreter has those of its profile. */
async function placeOf(wanted: string): Promise<Place> {
  if (wanted === 'interpreter') return interpreterPlace;
  const { id } = findAdapter(await discoverAdapters(), wanted);
  const rates = await calibrateInChild(id);
  const place = await gpuPlace(id);
  return { ...place, profile: { ...place.profile, ...rates, calibrated: true } };
}

async function measured(place: Place, shardingStrategy: string, linkGBps: number, steps: number) {
  const isHybrid = shardingStrategy === 'HYBRID_SHARD';
  const mesh = isHybrid ? { deviceMesh: MACHINES, linkGBps } : {};
  const config = {
    model: MODEL,
    devices: MACHINE_COUNT * RANKS_EACH,
    strategy: { kind: 'fsdp', shardingStrategy, ...mesh },
  };
  const adjust = (run: CompiledRun) => (isHybrid ? run : acrossTheLink(run, linkGBps));
  const ids = Array.from({ length: SHAPE.tokens }, (_, i) => (i * 7919) % MODEL.vocabSize);
  const ranks = await openRanks(place, { config, adjust, shape: SHAPE, batch: () => ({ input: ids, target: ids }) });
  try {
    const ms: number[] = [];
    for (let step = 0; step < steps; step++) {
      const from = performance.now();
      await ranks.train(step + 1, step);
      ms.push(performance.now() - from);
    }
    const [run] = ranks.runs;
    return {
      bytes: linkBytes(run),
      predictedMs: predictionOf(run, place.profile).estimateMs ?? Number.NaN,
      times: timesOf(ms.slice(1)),
    };
  } finally {
    await ranks.close();
  }
}

function line(cells: readonly string[]): string {
  const widths = [9, 12, 10, 12, 9, 6, 6, 6];
  return cells.map((cell, i) => (i === 1 ? cell.padEnd(widths[i]) : cell.padStart(widths[i]))).join(' ');
}
