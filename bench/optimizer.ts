import { parseConfig } from '../engine/config.ts';
import { buildModel } from '../engine/model/build-model.ts';
import { elementsOf } from '../engine/ops/graph.ts';
import { BufferLedger } from '../engine/runtime/buffer-ledger.ts';
import { adapterProfile } from '../engine/runtime/device.ts';
import { type PreparedDispatch, prepareDispatches } from '../engine/runtime/prepare.ts';
import { Slabs } from '../engine/runtime/slabs.ts';
import { compileRun } from '../engine/schedule/compile.ts';
import { BenchDevice } from './bench-device.ts';
import { floorMs, ratioTo } from './floor.ts';
import { GUIDE_MODEL } from './guide-model.ts';
import { line, timesOf } from './measure.ts';
import { optionsOf } from './options.ts';
import { measureRates } from './rates.ts';
import { askBeside, torchBeside } from './torch-parts.ts';

/** The guide's, and one that a machine without a GPU updates in milliseconds. */
const MODELS = {
  guide: GUIDE_MODEL,
  small: { kind: 'demo-transformer', vocabSize: 997, ninp: 128, nhead: 8, nhid: 512, nlayers: 4 },
} as const;
type BenchModel = (typeof MODELS)[keyof typeof MODELS];
const ROUNDS = 15;
/** Of each parameter: it and both moments read and written, its gradient read, 4 bytes each. */
const ADAM_BYTES = 28;
const TORCH_KINDS = ['foreach', 'fused'] as const;

/**
 * The optimizer's part of a step, Adam on one rank: one dispatch for a unit (foreach on) against one for each parameter
 * (off), and torch's Adam, foreach and fused, over as many parameters; in turns, from the first command to the end of the
 * work; beside the floor, the bytes that Adam reads and writes. Arguments: --adapter NAME, --model guide|small.
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = optionsOf(args);
  const device = await BenchDevice.open(option('adapter', 'auto'));
  const model = MODELS[option('model', device.software ? 'small' : 'guide') as keyof typeof MODELS];
  const { parameters } = buildModel(parseConfig({ model }).model, model.vocabSize);
  const elements = parameters.map(({ shape }) => elementsOf(shape));
  const torch = await torchBeside({ gpu: !device.software });
  const rates = await measureRates(device, torch);
  const bytes = ADAM_BYTES * elements.reduce((sum, n) => sum + n, 0);
  const floor = floorMs({ flops: 0, bytes }, rates);
  const [on, off] = [await prepared(device, model, true), await prepared(device, model, false)];
  const works = [
    { name: `foreach on, ${on.length} dispatches`, once: async () => [await updateMs(device, on)] },
    { name: `foreach off, ${off.length} dispatches`, once: async () => [await updateMs(device, off)] },
    ...TORCH_KINDS.map((kind) => ({
      name: `torch, ${kind}`,
      once: async () => (await askBeside(torch, { ask: 'adam', elements, kind }))?.ms ?? [],
    })),
  ];
  const times = works.map((): number[] => []);
  for (let round = -1; round < ROUNDS; round++)
    for (const [i, { once }] of works.entries()) {
      // The clock of a device that waited has fallen.
      if (i < 2) await device.warm(() => updateMs(device, [on, off][i]), round < 0 ? undefined : 0);
      const ms = await once();
      if (round >= 0) times[i].push(...ms);
    }
  torch?.close();
  console.log(`${device.entry.name}, Adam over ${(bytes / ADAM_BYTES / 1e6).toFixed(1)} M parameters`);
  console.log(`floor: ${(bytes / 1e9).toFixed(2)} GB at the rate of memory, ${floor.toFixed(2)} ms`);
  const medians = times.map((each) => (each.length ? timesOf(each).medianMs : null));
  for (const [i, { name }] of works.entries()) {
    const median = medians[i];
    if (median !== null)
      console.log(`${line(name, timesOf(times[i]))}, floor ${((100 * floor) / median).toFixed(0)} %`);
  }
  console.log(`off takes ${ratioTo(medians[0], medians[1]!)} times as long as on`);
  for (const [i, kind] of TORCH_KINDS.entries())
    if (medians[2 + i] !== null) console.log(`ours, on, to torch's ${kind}: ${ratioTo(medians[2 + i], medians[0]!)}`);
  device.close();
}

/** The optimizer's dispatches of a step, over a memory of its own. */
async function prepared(
  { adapter, entry, open }: BenchDevice,
  model: BenchModel,
  foreach: boolean,
): Promise<PreparedDispatch[]> {
  const config = parseConfig({ model, devices: 1, strategy: 'ddp', optimizer: { kind: 'adam', foreach } });
  const built = buildModel(config.model, model.vocabSize);
  const profile = adapterProfile(adapter, entry.name, entry.software);
  const compiled = compileRun({ config, model: built, shapes: [{ batch: 1, tokens: 35 }], rank: 0, profile });
  const slabs = await Slabs.create(compiled, new BufferLedger(open.device));
  const [step] = compiled.steps;
  const all = await prepareDispatches(open, slabs, step);
  return step.schedule.steps.flatMap(({ id, label }) => (label === 'adam' ? all[id] : []));
}

async function updateMs({ open: { device, guard } }: BenchDevice, list: readonly PreparedDispatch[]): Promise<number> {
  const began = performance.now();
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  for (const { pipeline, bindGroup, grid } of list) {
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, bindGroup);
    pass.dispatchWorkgroups(...grid);
  }
  pass.end();
  device.queue.submit([encoder.finish()]);
  await guard(device.queue.onSubmittedWorkDone());
  return performance.now() - began;
}
