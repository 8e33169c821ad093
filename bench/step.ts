import { openSoloMailbox } from '../engine/comm/in-process.ts';
import { parseConfig } from '../engine/config.ts';
import { buildModel } from '../engine/model/build-model.ts';
import { openAdapter } from '../engine/node/adapters.ts';
import { pipelineKey } from '../engine/ops/kernel.ts';
import { BufferLedger } from '../engine/runtime/buffer-ledger.ts';
import { adapterProfile, openDevice } from '../engine/runtime/device.ts';
import { Executor } from '../engine/runtime/executor.ts';
import { type PreparedDispatch, prepareDispatches } from '../engine/runtime/prepare.ts';
import { Slabs } from '../engine/runtime/slabs.ts';
import { offersTensorCores, tensorCoreProblem } from '../engine/runtime/tensor-cores.ts';
import { compileRun } from '../engine/schedule/compile.ts';
import { trainerRegions } from '../engine/trainer/train-rank.ts';
import { floorMs } from './floor.ts';
import { GpuTime } from './gpu-time.ts';
import { GUIDE_MODEL } from './guide-model.ts';
import { line, timesOf } from './measure.ts';

/** The guide's, and one that a machine without a GPU runs in seconds. */
const MODELS = {
  guide: GUIDE_MODEL,
  small: { kind: 'demo-transformer', vocabSize: 997, ninp: 128, nhead: 8, nhid: 512, nlayers: 2 },
} as const;

const STEPS = 21;
/** Each kernel's dispatches are sent so often in a row, all bindings of the step in turn: as cold as in the step. */
const ROUNDS = 3;
const WARM_MS = 250;

/**
 * A training step on one device, and where its time goes: each kernel's dispatches by themselves, over the memory they have
 * in the step, beside their floor (an H200's roofline). Arguments: --adapter NAME, --model
 * guide|small, --tokens N, --batch N, --precision 32-true|16-mixed|16-true, --dropout P.
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = (name: string, otherwise: string) => args[args.indexOf(`--${name}`) + 1 || args.length] ?? otherwise;
  const { adapter, entry } = await openAdapter(option('adapter', 'auto'));
  const model = MODELS[option('model', entry.software ? 'small' : 'guide') as keyof typeof MODELS];
  const [tokens, batch] = [Number(option('tokens', '35')), Number(option('batch', '1'))];
  const precision = option('precision', '32-true');
  const config = parseConfig({
    model: { ...model, dropout: Number(option('dropout', '0')) },
    precision,
    devices: 1,
    strategy: 'ddp',
    optimizer: { kind: 'adam', lr: 1e-4 },
    data: { kind: 'moby-dick', blockSize: tokens, batchSize: batch },
    trainer: { steps: STEPS },
  });
  const open = await openDevice(adapter);
  const tensorCores = precision !== '32-true' && offersTensorCores(adapter) && (await tensorCoreProblem(open)) === null;
  const profile = { ...adapterProfile(adapter, entry.name, entry.software), tensorCores };
  const built = buildModel(config.model, model.vocabSize);
  const compiled = compileRun({ config, model: built, shapes: [{ batch, tokens }], rank: 0, profile });
  const products = tensorCores ? ', tensor cores' : '';
  console.log(
    `${entry.name}, ${precision}${products}, ${batch} x ${tokens} tokens, ${compiled.steps[0].schedule.steps.length} steps`,
  );

  const engine = await Executor.create(compiled, open, openSoloMailbox(trainerRegions(compiled)));
  const wall: number[] = [];
  const encode: number[] = [];
  const ids = () => Uint32Array.from({ length: batch * tokens }, (_, i) => (i * 7919) % model.vocabSize);
  for (let step = 0; step < STEPS; step++) {
    const started = performance.now();
    const { submitted, outcome } = engine.start({
      shapeIndex: 0,
      step,
      lrFactor: 1,
      inputs: [ids()],
      targets: [ids()],
      stopRequested: () => false,
    } as Parameters<typeof engine.start>[0]);
    await submitted;
    encode.push(performance.now() - started);
    await outcome;
    wall.push(performance.now() - started);
  }
  console.log(line('step', timesOf(wall.slice(-9))));
  console.log(line('  of that, host until all is submitted', timesOf(encode.slice(-9))));
  await engine.close();
  await open.device.queue.onSubmittedWorkDone();

  const slabs = await Slabs.create(compiled, new BufferLedger(open.device));
  const [step] = compiled.steps;
  const prepared = (await prepareDispatches(open, slabs, step)).flat();
  for (const { id, contents, bytes } of step.schedule.tensors)
    if (contents) {
      const { buffer, offset } = slabs.place(step, { tensor: id, offsetBytes: 0, bytes });
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
  const clock = new GpuTime(open.device);
  const rows: { name: string; count: number; ms: number; floorMs: number }[] = [];
  for (const [name, group] of groups) {
    const once = () => runAll(clock, group, Math.max(ROUNDS, Math.ceil(24 / group.length)));
    // A GPU's clock rises with the work it has.
    const began = performance.now();
    do await once();
    while (!entry.software && performance.now() - began < WARM_MS);
    const ms = Math.min(await once(), await once(), await once());
    const floor = group.reduce((sum, { dispatch: { kernel, params } }) => sum + floorMs(kernel.cost(params)), 0);
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
  open.close();
}

/** Milliseconds of one dispatch on the device's clock, when those of a group run one after the other. */
async function runAll(clock: GpuTime, group: readonly PreparedDispatch[], rounds: number): Promise<number> {
  const ms = await clock.ofPass((pass) => {
    pass.setPipeline(group[0].pipeline);
    for (let round = 0; round < rounds; round++)
      for (const { bindGroup, grid } of group) {
        pass.setBindGroup(0, bindGroup);
        pass.dispatchWorkgroups(grid[0], grid[1], grid[2]);
      }
  });
  return ms / rounds / group.length;
}
