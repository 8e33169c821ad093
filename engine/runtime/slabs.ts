import type { ExecutableRun, ExecutableStep } from '../schedule/compile.ts';
import type { Range } from '../schedule/schedule.ts';
import type { BufferLedger } from './buffer-ledger.ts';

const USAGE = {
  device: () => GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST,
  upload: () => GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC,
  download: () => GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
  uniform: () => GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
} as const;

/** A range as a command takes it. */
export interface PlacedRange {
  readonly slab: number;
  readonly buffer: GPUBuffer;
  readonly offset: number;
  readonly size: number;
}

/** The buffers of a rank, one for each slab of the memory plan, made before step 0 and kept to the end. */
export class Slabs {
  private constructor(private readonly buffers: readonly GPUBuffer[]) {}

  /** Makes them all. Throws StudioError `out-of-memory`. */
  static async create(run: ExecutableRun, ledger: BufferLedger): Promise<Slabs> {
    const buffers: GPUBuffer[] = [];
    for (const [i, { bytes, space }] of run.memory.slabs.entries()) {
      const label = `${space} slab ${i} of rank ${run.rank}`;
      // With peers the host's threads have the most to do; there it gains nothing that they store to the device themselves.
      const onDevice = space === 'upload' && run.steps[0].schedule.world === 1;
      buffers.push(await (onDevice ? ledger.createUpload(label, bytes) : ledger.create(label, bytes, USAGE[space]())));
    }
    return new Slabs(buffers);
  }

  /** Where a range of a tensor lies. */
  place(step: ExecutableStep, range: Range): PlacedRange {
    const { slab, offsetBytes } = step.placements[range.tensor];
    return { slab, buffer: this.buffers[slab], offset: offsetBytes + range.offsetBytes, size: range.bytes };
  }

  /** The slab of all uniform parameters: the plan's last. */
  get uniforms(): GPUBuffer {
    return this.buffers[this.buffers.length - 1];
  }
}
