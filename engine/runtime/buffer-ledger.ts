import { StudioError } from '../errors.ts';
import { uploadUsage } from './upload-usage.ts';

/**
 * The only place where a rank makes GPU buffers, and so where its reserved bytes are measured. After `seal`, making one is
 * an error: a step of training makes none.
 */
export class BufferLedger {
  currentBytes = 0;
  peakBytes = 0;
  /** Of buffers that are host memory: what the host keeps. */
  hostBytes = 0;
  /** Allocations that the device refused first and granted after unused memory was given back, and gathers that waited for a slot. */
  allocRetries = 0;
  ooms = 0;
  private sealed = false;
  private uploadUsage: GPUBufferUsageFlags | null = null;
  private readonly buffers = new Set<GPUBuffer>();

  constructor(private readonly device: GPUDevice) {}

  /**
   * Makes a buffer for the first of these usages that the device has the memory for. Throws StudioError `out-of-memory` when it
   * refuses the last twice.
   */
  async create(label: string, bytes: number, ...usages: readonly GPUBufferUsageFlags[]): Promise<GPUBuffer> {
    const advice = `with ${mib(this.currentBytes)} MiB held. Use more ranks, FULL_SHARD, or a smaller model or batch`;
    const buffer = await this.make(label, bytes, usages, advice);
    this.currentBytes += bytes;
    this.peakBytes = Math.max(this.peakBytes, this.currentBytes);
    return buffer;
  }

  /** Makes a buffer that the host writes and the device copies from, in device memory if it can be. Throws as `create`. */
  async createUpload(label: string, bytes: number): Promise<GPUBuffer> {
    this.uploadUsage ??= await uploadUsage(this.device);
    return this.create(label, bytes, this.uploadUsage, GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC);
  }

  /** Makes a buffer of host memory that the device copies to and the host reads. Throws StudioError `out-of-memory`. */
  async createOnHost(label: string, bytes: number): Promise<GPUBuffer> {
    const advice = `with ${mib(this.hostBytes)} MiB of host memory held. Free memory, or switch strategy.cpuOffload off where a GPU has the room`;
    const buffer = await this.make(label, bytes, [GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST], advice);
    this.hostBytes += bytes;
    return buffer;
  }

  /** From here on no buffer may be made. */
  seal(): void {
    this.sealed = true;
  }

  /** Gives every buffer back. */
  destroyAll(): void {
    for (const buffer of this.buffers) buffer.destroy();
    this.buffers.clear();
    this.currentBytes = 0;
    this.hostBytes = 0;
  }

  private async make(
    label: string,
    bytes: number,
    usages: readonly GPUBufferUsageFlags[],
    advice: string,
  ): Promise<GPUBuffer> {
    if (this.sealed) throw new StudioError('internal', `buffer ${label} was made after step 0 began`);
    let buffer: GPUBuffer | null = null;
    for (const usage of usages) buffer ??= await this.tryCreate(label, bytes, usage);
    buffer ??= await this.retry(label, bytes, usages[usages.length - 1]);
    if (!buffer) {
      this.ooms++;
      throw new StudioError('out-of-memory', `the device has no room for ${label} of ${mib(bytes)} MiB, ${advice}`, {
        label,
        bytes,
        heldBytes: this.currentBytes,
      });
    }
    this.buffers.add(buffer);
    return buffer;
  }

  private async tryCreate(label: string, size: number, usage: GPUBufferUsageFlags): Promise<GPUBuffer | null> {
    this.device.pushErrorScope('out-of-memory');
    this.device.pushErrorScope('validation');
    const buffer = this.device.createBuffer({ label, size, usage });
    const [invalid, refused] = await Promise.all([this.device.popErrorScope(), this.device.popErrorScope()]);
    if (invalid)
      throw new StudioError('out-of-memory', `the device cannot make ${label}: ${invalid.message}`, { bytes: size });
    return refused ? null : buffer;
  }

  /** What was destroyed is only free once the queue has been fenced. */
  private async retry(label: string, bytes: number, usage: GPUBufferUsageFlags): Promise<GPUBuffer | null> {
    this.allocRetries++;
    this.device.queue.submit([]);
    await this.device.queue.onSubmittedWorkDone();
    return this.tryCreate(label, bytes, usage);
  }
}

function mib(bytes: number): string {
  return (bytes / 2 ** 20).toFixed(2);
}
