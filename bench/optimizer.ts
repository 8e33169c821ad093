import { parseConfig } from '../engine/config.ts';
import { buildModel } from '../engine/model/build-model.ts';
import { parameterCount } from '../engine/model/model.ts';
import { openAdapter } from '../engine/node/adapters.ts';
import { BufferLedger } from '../engine/runtime/buffer-ledger.ts';
import { adapterProfile, type OpenDevice, openDevice } from '../engine/runtime/device.ts';
import { type PreparedDispatch, prepareDispatches } from '../engine/runtime/prepare.ts';
import { Slabs } from '../engine/runtime/slabs.ts';
import { compileRun } from '../engine/schedule/compile.ts';
import type { AdapterProfile } from '../engine/schedule/profile.ts';
import { GUIDE_MODEL } from './guide-model.ts';
import { compare, line, measure, type Times } from './measure.ts';

/** The guide's, and one that a machine without a GPU updates in milliseconds. */
const MODELS = {
  guide: GUIDE_MODEL,
  small: { kind: 'demo-transformer', vocabSize: 997, ninp: 128, nhead: 8, nhid: 512, nlayers: 4 },
} as const;
const RUNS = 15;
/** Of each parameter: it and both moments read and written, its gradient read, 4 bytes each. */
const ADAM_BYTES = 28;
/** What is copied at once. */
const COPY_BYTES = 64 * 2 ** 20;

/**
 * The optimizer's part of a step, Adam on one rank: one dispatch for a unit (foreach on) against one for each parameter
 * (off), measured in turns from the first command to the end of the work; beside its floor, the bytes that Adam reads and
 * writes at the rate of a copy on this adapter. Arguments: --adapter NAME, --model guide|small.
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = (name: string, otherwise: string) => args[args.indexOf(`--${name}`) + 1 || args.length] ?? otherwise;
  const { adapter, entry } = await openAdapter(option('adapter', 'auto'));
  const model = MODELS[option('model', entry.software ? 'small' : 'guide') as keyof typeof MODELS];
  const profile = adapterProfile(adapter, entry.name, entry.software);
  const open = await openDevice(adapter);
  const [on, off] = [await prepared(open, profile, model, true), await prepared(open, profile, model, false)];
  const { first, second, ratio } = await compare(
    () => update(open, on),
    () => update(open, off),
    RUNS,
  );
  console.log(`${entry.name}, Adam`);
  console.log(line(`foreach on, ${on.length} dispatches`, first));
  console.log(line(`foreach off, ${off.length} dispatches`, second));
  const floor = await copyTimes(
    open,
    ADAM_BYTES * parameterCount(buildModel(parseConfig({ model }).model, model.vocabSize)),
  );
  console.log(line('floor: as many bytes copied', floor));
  console.log(`off takes ${(1 / ratio).toFixed(2)} times as long as on`);
  open.close();
}

/** The optimizer's dispatches of a step, over a memory of its own. */
async function prepared(
  open: OpenDevice,
  profile: AdapterProfile,
  model: (typeof MODELS)[keyof typeof MODELS],
  foreach: boolean,
): Promise<PreparedDispatch[]> {
  const config = parseConfig({ model, devices: 1, strategy: 'ddp', optimizer: { kind: 'adam', foreach } });
  const built = buildModel(config.model, model.vocabSize);
  const compiled = compileRun({ config, model: built, shapes: [{ batch: 1, tokens: 35 }], rank: 0, profile });
  const slabs = await Slabs.create(compiled, new BufferLedger(open.device));
  const [step] = compiled.steps;
  const all = await prepareDispatches(open, slabs, step);
  return step.schedule.steps.flatMap(({ id, label }) => (label === 'adam' ? all[id] : []));
}

async function update({ device }: OpenDevice, dispatches: readonly PreparedDispatch[]): Promise<void> {
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  for (const { pipeline, bindGroup, grid } of dispatches) {
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, bindGroup);
    pass.dispatchWorkgroups(...grid);
  }
  pass.end();
  device.queue.submit([encoder.finish()]);
  await device.queue.onSubmittedWorkDone();
}

/** The time of copies on the device that read and write so many bytes together. */
async function copyTimes({ device }: OpenDevice, bytes: number): Promise<Times> {
  const usage = GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  const [from, to] = [0, 1].map(() => device.createBuffer({ size: COPY_BYTES, usage }));
  const times = await measure(async () => {
    const encoder = device.createCommandEncoder();
    for (let left = bytes / 2; left > 0; left -= COPY_BYTES)
      encoder.copyBufferToBuffer(from, 0, to, 0, Math.ceil(Math.min(left, COPY_BYTES) / 4) * 4);
    device.queue.submit([encoder.finish()]);
    await device.queue.onSubmittedWorkDone();
  }, RUNS);
  for (const buffer of [from, to]) buffer.destroy();
  return times;
}
