import { openAdapter } from '../engine/node/adapters.ts';
import { mappedView } from '../engine/node/mapped-view.ts';
import { parallelCopy } from '../engine/node/parallel-copy.ts';
import { openSharedMailbox } from '../engine/node/shared-memory.ts';
import { adapterProfile, openDevice } from '../engine/runtime/device.ts';
import { Executor } from '../engine/runtime/executor.ts';
import { UploadSlot } from '../engine/runtime/staging.ts';
import {
  COLLECTIVES,
  type CollectiveKind,
  collectivesRun,
  type RankReport,
  type RankTask,
  trafficOf,
} from './collectives-plan.ts';
import { measure } from './measure.ts';

/** One rank of `npm run bench -- collectives`: does what its argument says and sends a RankReport. */

const COPY_BYTES = 16 * 2 ** 20;
const COPY_SLOTS = 3;
const COPY_RUNS = 9;

const task = JSON.parse(process.argv[2]) as RankTask;
const { adapter, entry } = await openAdapter(task.adapterId);
const open = await openDevice(adapter);
const profile = adapterProfile(adapter, entry.name, entry.software);
const run = collectivesRun({ ...task, profile });
const mailbox = await openSharedMailbox({
  path: task.sharedFolder,
  rank: task.rank,
  worldSize: task.world,
  regions: run.regions,
  spin: !entry.software,
});
const executor = await Executor.create(
  run,
  open,
  mailbox,
  entry.software ? {} : { copy: parallelCopy, view: mappedView },
);

const step = async (kind: CollectiveKind, number: number): Promise<number> => {
  const feed = { step: number, shapeIndex: COLLECTIVES.indexOf(kind), inputs: [], targets: [], lrFactor: 1 };
  const started = performance.now();
  await executor.start({ ...feed, stopRequested: () => false }).outcome;
  await open.device.queue.onSubmittedWorkDone();
  return performance.now() - started;
};
const ms: Record<CollectiveKind, number[]> = { 'all-gather': [], 'reduce-scatter': [], 'all-reduce': [] };
// A first collective brings the ranks together: then they copy at the same time.
await step('all-gather', 0);
const upBytesPerSecond = await uploadRate();
await step('all-gather', 1);
const downBytesPerSecond = await downloadRate();
let number = 2;
for (const kind of COLLECTIVES)
  for (let round = -1; round < task.rounds; round++) {
    const elapsed = await step(kind, number++);
    if (round >= 0) ms[kind].push(elapsed);
  }
const [gather, scatter, reduce] = run.steps.map(({ schedule }) => trafficOf(schedule));
const traffic = { 'all-gather': gather, 'reduce-scatter': scatter, 'all-reduce': reduce };
const report: RankReport = { upBytesPerSecond, downBytesPerSecond, traffic, ms };
process.send?.(report, () => process.exit(0));

/** Bytes a second from host memory into mapped upload staging, several slots at once, the device's part left out. */
async function uploadRate(): Promise<number> {
  const source = new Uint8Array(COPY_BYTES).fill(1);
  const buffers = Array.from({ length: COPY_SLOTS }, () =>
    open.device.createBuffer({ size: COPY_BYTES, usage: GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC }),
  );
  const mapped = await Promise.all(buffers.map((buffer) => new UploadSlot(buffer).open(COPY_BYTES)));
  const rate = await copyRate(() => Promise.all(mapped.map((target) => parallelCopy(target, source))));
  for (const buffer of buffers) buffer.destroy();
  return rate;
}

/** The same out of mapped download staging. */
async function downloadRate(): Promise<number> {
  const target = Array.from({ length: COPY_SLOTS }, () => new Uint8Array(COPY_BYTES).fill(1));
  const buffers = target.map(() =>
    open.device.createBuffer({ size: COPY_BYTES, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST }),
  );
  await Promise.all(buffers.map((buffer) => buffer.mapAsync(GPUMapMode.READ)));
  const mapped = buffers.map((buffer) => new Uint8Array(buffer.getMappedRange()));
  const rate = await copyRate(() => Promise.all(mapped.map((source, i) => parallelCopy(target[i], source))));
  for (const buffer of buffers) buffer.destroy();
  return rate;
}

async function copyRate(copy: () => Promise<unknown>): Promise<number> {
  const { medianMs } = await measure(copy, COPY_RUNS, 2);
  return ((COPY_BYTES * COPY_SLOTS) / medianMs) * 1000;
}
