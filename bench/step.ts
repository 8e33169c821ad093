import { openSoloMailbox } from '../engine/comm/in-process.ts';
import { parseConfig } from '../engine/config.ts';
import { buildModel } from '../engine/model/build-model.ts';
import { pipelineKey } from '../engine/ops/kernel.ts';
import { BufferLedger } from '../engine/runtime/buffer-ledger.ts';
import { adapterProfile } from '../engine/runtime/device.ts';
import { Executor } from '../engine/runtime/executor.ts';
import { type PreparedDispatch, prepareDispatches } from '../engine/runtime/prepare.ts';
import { Slabs } from '../engine/runtime/slabs.ts';
import { offersTensorCores, tensorCoreProblem } from '../engine/runtime/tensor-cores.ts';
import { compileRun } from '../engine/schedule/compile.ts';
import { trainerRegions } from '../engine/trainer/train-rank.ts';
import { BenchDevice } from './bench-device.ts';
import { dispatchFloorMs, ratioTo } from './floor.ts';
import { GUIDE_MODEL } from './guide-model.ts';
import { line, timesOf } from './measure.ts';
import { optionsOf } from './options.ts';
import { measureRates } from './rates.ts';
import { askBeside, torchBeside } from './torch-parts.ts';

/** The guide's, and one that a machine without a GPU runs in seconds. */
const MODELS = {
  guide: GUIDE_MODEL,
  small: { kind: 'demo-transformer', vocabSize: 997, ninp: 128, nhead: 8, nhid: 512, nlayers: 2 },
} as const;

/** Ours and torch's take turns of three steps, after some of ours that do not count. */
const [WARM_UPS, TURNS, STEPS_A_TURN] = [12, 3, 3];
/** Each kernel's dispatches are sent so often in a row, all bindings of the step in turn: as cold as in the step. */
const ROUNDS = 3;

/**
 * A training step on one device beside torch's without Fabric, and where its time goes: each kernel's dispatches by
 * themselves, over the memory they have in the step, beside their floor by this device's measured rates. Arguments:
 * --adapter NAME, --model guide|small, --tokens N, --batch N, --precision 32-true|16-mixed|16-true, --dropout P.
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = optionsOf(args);
  const bench = await BenchDevice.open(option('adapter', 'auto'));
  const { adapter, entry, open } = bench;
  const model = MODELS[option('model', entry.software ? 'small' : 'guide') as keyof typeof MODELS];
  const [tokens, batch] = [Number(option('tokens', '35')), Number(option('batch', '1'))];
  const dropout = Number(option('dropout', '0'));
  const precision = option('precision', '32-true');
  const config = parseConfig({
    model: { ...model, dropout },
    precision,
    devices: 1,
    strategy: 'ddp',
    optimizer: { kind: 'adam', lr: 1e-4 },
    data: { kind: 'moby-dick', blockSize: tokens, batchSize: batch },
    trainer: { steps: WARM_UPS + TURNS * STEPS_A_TURN },
  });
  const tensorCores = precision !== '32-true' && offersTensorCores(adapter) && (await tensorCoreProblem(open)) === null;
  const profile = { ...adapterProfile(adapter, entry.name, entry.software), tensorCores };
  const built = buildModel(config.model, model.vocabSize);
  const compiled = compileRun({ config, model: built, shapes: [{ batch, tokens }], rank: 0, profile });
  const products = tensorCores ? ', tensor cores' : '';
  const torch = await torchBeside({ gpu: !entry.software });
  const rates = await measureRates(bench, torch);
  console.log(
    `${entry.name}, ${precision}${products}, ${batch} x ${tokens} tokens, ${compiled.steps[0].schedule.steps.length} steps`,
  );

  const engine = await Executor.create(compiled, open, openSoloMailbox(trainerRegions(compiled)));
  const wall: number[] = [];
  const encode: number[] = [];
  const ids = () => Uint32Array.from({ length: batch * tokens }, (_, i) => (i * 7919) % model.vocabSize);
  let step = 0;
  const once = async () => {
    const started = performance.now();
    const { submitted, outcome } = engine.start({
      shapeIndex: 0,
      step: step++,
      lrFactor: 1,
      inputs: [ids()],
      targets: [ids()],
      stopRequested: () => false,
    } as Parameters<typeof engine.start>[0]);
    await submitted;
    encode.push(performance.now() - started);
    await outcome;
    wall.push(performance.now() - started);
  };
  const theirs: number[] = [];
  const { kind: _, ...shape } = model;
  const question = { ask: 'step', model: { ...shape, dropout }, batch, tokens, precision, rounds: STEPS_A_TURN };
  while (step < WARM_UPS) await once();
  for (let turn = 0; turn < TURNS; turn++) {
    theirs.push(...((await askBeside(torch, question))?.ms ?? []));
    for (let i = 0; i < STEPS_A_TURN; i++) await once();
  }
  torch?.close();
  const own = timesOf(wall.slice(WARM_UPS));
  console.log(line('step', own));
  console.log(line('  of that, host until all is submitted', timesOf(encode.slice(WARM_UPS))));
  if (theirs.length) {
    const times = timesOf(theirs);
    console.log(line("torch's step", times));
    console.log(`ours to torch's: ${ratioTo(times.medianMs, own.medianMs)}`);
  }
  await engine.close();
  await open.device.queue.onSubmittedWorkDone();

  const slabs = await Slabs.create(compiled, new BufferLedger(open.device));
  const [executable] = compiled.steps;
  const prepared = (await prepareDispatches(open, slabs, executable)).flat();
  for (const { id, contents, bytes } of executable.schedule.tensors)
    if (contents) {
      const { buffer, offset } = slabs.place(executable, { tensor: id, offsetBytes: 0, bytes });
      open.device.queue.writeBuffer(buffer, offset, contents);
    }
  await open.device.queue.onSubmittedWorkDone();
  const groups = new Map<string, PreparedDispatch[]>();
  for (const each of prepared) {
    const { kernel, params, tiled } = each.dispatch;
    const shape = ['M', 'N', 'K', 'R', 'C', 'D', 'T', 'n', 'totalRows'].flatMap((p) =>
      params[p] === undefined ? [] : [`${p}=${params[p]}`],
    );
    const key = `${pipelineKey(kernel, params, tiled)} ${shape.join(' ')}`;
    groups.set(key, [...(groups.get(key) ?? []), each]);
  }
  const rows: { name: string; count: number; ms: number; floorMs: number }[] = [];
  for (const [name, group] of groups) {
    const once = () => runAll(bench, group, Math.max(ROUNDS, Math.ceil(24 / group.length)));
    await bench.warm(once);
    const ms = Math.min(await once(), await once(), await once());
    const floor = group.reduce((sum, { dispatch }) => sum + dispatchFloorMs(dispatch, rates), 0);
    rows.push({ name, count: group.length, ms: ms * group.length, floorMs: floor });
  }
  rows.sort((a, b) => b.ms - a.ms);
  console.log(`${'kernel'.padEnd(64)} count     us    sum ms  floor ms`);
  for (const { name, count, ms, floorMs } of rows.slice(0, 40))
    console.log(
      `${name.padEnd(64)} ${String(count).padStart(5)} ${((1000 * ms) / count).toFixed(1).padStart(7)} ${ms.toFixed(2).padStart(8)} ${floorMs.toFixed(2).padStart(8)}`,
    );
  const sum = (pick: (row: (typeof rows)[number]) => number) => rows.reduce((total, row) => total + pick(row), 0);
  console.log(
    `${'all'.padEnd(64)} ${String(prepared.length).padStart(5)} ${' '.repeat(7)} ${sum((r) => r.ms)
      .toFixed(2)
      .padStart(8)} ${sum((r) => r.floorMs)
      .toFixed(2)
      .padStart(8)}`,
  );
  bench.close();
}

/** Milliseconds of one dispatch on the device's clock, when those of a group run one after the other. */
async function runAll(bench: BenchDevice, group: readonly PreparedDispatch[], rounds: number): Promise<number> {
  const ms = await bench.msOf((pass) => {
    pass.setPipeline(group[0].pipeline);
    for (const { bindGroup, grid } of group) {
      pass.setBindGroup(0, bindGroup);
      pass.dispatchWorkgroups(grid[0], grid[1], grid[2]);
    }
  }, rounds);
  return ms / group.length;
}
