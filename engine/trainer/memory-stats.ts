import type { CompiledRun } from '../schedule/compile.ts';
import type { MeasuredMemory } from '../schedule/rank-engine.ts';
import { CATEGORIES, type Category, type Tensor } from '../schedule/schedule.ts';
import { type FreeChange, FreeRanges } from './free-ranges.ts';
import { Meter, PooledMeter, type PooledStat, type Stat } from './meter.ts';

/** PyTorch's caching allocator serves requests below this from its small pool … */
const SMALL_TENSOR_BYTES = 2 ** 20;
/** … whose segments are this large; its large pool's are larger. */
const SMALL_BUFFER_BYTES = 2 ** 21;

/** What a rank's memory has been through, as torch.cuda.memory_stats counts it. */
export interface MemoryStats {
  /** Live tensors of the schedule. Pools: below 1 MiB, and the rest. */
  readonly tensorBytes: PooledStat;
  readonly tensors: PooledStat;
  /** Buffers held. Pools: below 2 MiB, and the rest. */
  readonly reservedBytes: PooledStat;
  readonly buffers: PooledStat;
  /** What of the held buffers no live tensor covers, by the pool of the buffer. */
  readonly freeBytes: PooledStat;
  readonly freeRanges: PooledStat;
  readonly categories: Readonly<Record<Category, Stat>>;
}

/**
 * Counts a rank's memory over `stepsByShape[i]` steps of each batch shape i: its state once, what a step creates and frees
 * with each step. Current is what is live between steps. Free ranges count from when the state is in its place: one that
 * a tensor takes a part of is gone, and what is left of it is a new one, as in PyTorch's allocator.
 */
export function memoryStats(
  run: CompiledRun,
  stepsByShape: readonly number[],
  measured: Pick<MeasuredMemory, 'currentBytes' | 'peakBytes'>,
): MemoryStats {
  return new Walk(run).stats(stepsByShape, measured);
}

class Walk {
  private readonly tensorBytes = new PooledMeter();
  private readonly tensors = new PooledMeter();
  private readonly freeBytes = new PooledMeter();
  private readonly freeRanges = new PooledMeter();
  private readonly categories = Object.fromEntries(CATEGORIES.map((c) => [c, new Meter()])) as Record<Category, Meter>;
  private readonly free: readonly FreeRanges[];
  private readonly isSmallBuffer: readonly boolean[];

  constructor(private readonly run: CompiledRun) {
    this.free = run.memory.slabs.map((slab) => new FreeRanges(slab.bytes));
    this.isSmallBuffer = run.memory.slabs.map((slab) => slab.bytes < SMALL_BUFFER_BYTES);
  }

  stats(stepsByShape: readonly number[], measured: Pick<MeasuredMemory, 'currentBytes' | 'peakBytes'>): MemoryStats {
    this.placeState();
    this.run.steps.forEach((_, shape) => {
      const times = stepsByShape[shape] ?? 0;
      if (times > 0) this.walkStep(shape, times);
    });
    const { tensorBytes, tensors, freeBytes, freeRanges, categories } = this;
    return { tensorBytes, tensors, freeBytes, freeRanges, categories, ...this.held(measured) };
  }

  /** Batch shapes share state by name. What offload keeps on the host is in no buffer. */
  private placeState(): void {
    const placed = new Set<string>();
    for (const { schedule, placements } of this.run.steps)
      for (const tensor of schedule.tensors) {
        if (!tensor.state || tensor.space === 'host' || placed.has(tensor.name)) continue;
        placed.add(tensor.name);
        this.come(tensor, 1);
        const { slab, offsetBytes } = placements[tensor.id];
        this.free[slab].take(offsetBytes, tensor.bytes);
      }
    this.free.forEach((ranges, slab) => {
      this.made(slab, ranges.sizes(), 1);
    });
  }

  /** One step, metered as if it were done `times` times: it ends as it began. */
  private walkStep(shape: number, times: number): void {
    const { schedule, placements } = this.run.steps[shape];
    for (const { creates, frees } of schedule.steps) {
      for (const id of creates) {
        const { slab, offsetBytes } = placements[id];
        this.come(schedule.tensors[id], times);
        this.change(slab, this.free[slab].take(offsetBytes, schedule.tensors[id].bytes), times);
      }
      for (const id of frees) {
        const { slab, offsetBytes } = placements[id];
        this.go(schedule.tensors[id], times);
        this.change(slab, this.free[slab].give(offsetBytes, schedule.tensors[id].bytes), times);
      }
    }
  }

  private come({ bytes, category }: Tensor, times: number): void {
    const isSmall = bytes < SMALL_TENSOR_BYTES;
    this.tensorBytes.add(isSmall, bytes, times);
    this.tensors.add(isSmall, 1, times);
    this.categories[category].add(bytes, times);
  }

  private go({ bytes, category }: Tensor, times: number): void {
    const isSmall = bytes < SMALL_TENSOR_BYTES;
    this.tensorBytes.remove(isSmall, bytes, times);
    this.tensors.remove(isSmall, 1, times);
    this.categories[category].remove(bytes, times);
  }

  private change(slab: number, { gone, made }: FreeChange, times: number): void {
    for (const bytes of gone) {
      this.freeBytes.remove(this.isSmallBuffer[slab], bytes, times);
      this.freeRanges.remove(this.isSmallBuffer[slab], 1, times);
    }
    this.made(slab, made, times);
  }

  private made(slab: number, sizes: readonly number[], times: number): void {
    for (const bytes of sizes) {
      this.freeBytes.add(this.isSmallBuffer[slab], bytes, times);
      this.freeRanges.add(this.isSmallBuffer[slab], 1, times);
    }
  }

  /** The buffers held: bytes as they were measured, by pool as the plan's buffers are, and the number of these. */
  private held({ currentBytes, peakBytes }: Pick<MeasuredMemory, 'currentBytes' | 'peakBytes'>) {
    const reservedBytes = new PooledMeter();
    const buffers = new PooledMeter();
    let small = 0;
    this.run.memory.slabs.forEach(({ bytes }, slab) => {
      buffers.add(this.isSmallBuffer[slab], 1);
      if (this.isSmallBuffer[slab]) small += bytes;
    });
    small = Math.min(small, currentBytes);
    reservedBytes.add(true, small);
    reservedBytes.add(false, peakBytes - small);
    reservedBytes.remove(false, peakBytes - currentBytes);
    return { reservedBytes, buffers };
  }
}
