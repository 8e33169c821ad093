import type { CompiledRun } from '../schedule/compile.ts';
import type { MeasuredMemory } from '../schedule/rank-engine.ts';
import { CATEGORIES } from '../schedule/schedule.ts';
import { memoryStats } from './memory-stats.ts';
import { Meter } from './meter.ts';
import { centred, type HeadingWords, heading, pooled, renderTable, single, type Table } from './summary-table.ts';

const WEBGPU: HeadingWords = {
  title: 'WebGPU buffers of this worker',
  ooms: 'GPU OOMs',
  retries: 'allocation retries',
};

/**
 * torch.cuda.memory_summary() of one rank's WebGPU buffers after `stepsDone` steps, and below it the same four columns by
 * category of the schedule. An array counts the steps of each batch shape of the run; a number those of its first.
 *
 * The form is PyTorch's to the byte; where PyTorch names CUDA it says what is counted here: "WebGPU buffers of this
 * worker", "GPU OOMs", "allocation retries". PyTorch's words mean, on this engine: allocated, active and requested are all
 * live tensors of the schedule (nothing is rounded, nothing outlives its step; the small pool is those below 1 MiB);
 * reserved are the buffers held and segments their number (small: below 2 MiB); non-releasable is what of those buffers no
 * live tensor covers (alignment and the uniforms of the dispatches included), by the buffer's pool. Current is the state
 * between steps. A category's peak is its own: the peaks need not fall on one step, nor add up.
 */
export function memorySummary(
  run: CompiledRun,
  stepsDone: number | readonly number[],
  measured: MeasuredMemory,
  device: { readonly id: number; readonly name: string },
): string {
  const stepsByShape = typeof stepsDone === 'number' ? [stepsDone] : stepsDone;
  const stats = memoryStats(run, stepsByShape, measured);
  const none = new Meter();
  const main: Table = {
    heading: heading(WEBGPU, { device: device.id, ooms: measured.ooms, retries: measured.allocRetries }),
    firstColumn: 'Metric',
    groups: [
      pooled('Allocated memory', 'bytes', stats.tensorBytes),
      pooled('Active memory', 'bytes', stats.tensorBytes),
      pooled('Requested memory', 'bytes', stats.tensorBytes),
      pooled('GPU reserved memory', 'bytes', stats.reservedBytes),
      pooled('Non-releasable memory', 'bytes', stats.freeBytes),
      pooled('Allocations', 'count', stats.tensors),
      pooled('Active allocs', 'count', stats.tensors),
      pooled('GPU reserved segments', 'count', stats.buffers),
      pooled('Non-releasable allocs', 'count', stats.freeRanges),
      [single('Oversize allocations', 'count', none)],
      [single('Oversize GPU segments', 'count', none)],
    ],
  };
  const byCategory: Table = {
    heading: [centred(`By category, on ${device.name}`)],
    firstColumn: 'Category',
    groups: [CATEGORIES.map((category) => single(category, 'bytes', stats.categories[category]))],
  };
  return renderTable(main) + renderTable(byCategory);
}
