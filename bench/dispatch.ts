import { packHalves } from '../engine/ops/half/half.ts';
import { type DType, type Kernel, type Params, runsAs, type TiledVariant } from '../engine/ops/kernel.ts';
import { seededRandom } from '../engine/ops/kernel-case.ts';
import type { OpenDevice } from '../engine/runtime/device.ts';
import { encodeFree, freeDispatch } from '../engine/runtime/free-dispatch.ts';

/** Puts a dispatch into a pass, over the buffers whose turn it is. */
export type Encode = (pass: GPUComputePassEncoder, turn?: number) => void;

/** The kernel in this variant, whatever its parameters. */
export function withVariant(kernel: Kernel, variant: TiledVariant): Kernel {
  return { ...kernel, tiled: { ...variant, fits: () => true, special: [] } };
}

/**
 * A dispatch that is ready to run, as the engine runs it on a GPU, or on a software adapter. Each turn has the buffers of all
 * operands; turns follow each other in a ring. Rejects when the kernel does not compile.
 */
export async function readyDispatch(
  open: OpenDevice,
  kernel: Kernel,
  params: Params,
  turns: readonly (readonly GPUBuffer[])[],
  software = false,
): Promise<Encode> {
  const call = { kernel, params, ...runsAs(kernel, params, software) };
  const buffer = (size: number, usage: GPUBufferUsageFlags) => open.device.createBuffer({ size, usage });
  const dispatch = await freeDispatch(open, call, turns, buffer);
  return (pass, turn) => encodeFree(pass, dispatch, turn);
}

let pool = new Float32Array(0);

/** Numbers in [-1, 1), the same each time: a part of one list, which is made once and may begin anywhere in it. */
export function randomValues(count: number, from = 0): Float32Array<ArrayBuffer> {
  if (pool.length < from + count) {
    const random = seededRandom(1);
    pool = Float32Array.from({ length: from + count }, () => random() * 2 - 1);
  }
  return pool.subarray(from, from + count);
}

const CHUNK = 2 ** 20;

/** Buffers with numbers in [-1, 1): what a GPU draws, and with it its clock, depends on what it multiplies. */
export class RandomBuffers {
  private readonly chunks = new Map<DType, GPUBuffer>();
  private readonly made: GPUBuffer[] = [];

  constructor(private readonly device: GPUDevice) {}

  /** At least 64 bytes. Integers are zeros. */
  make(bytes: number, dtype: DType = 'f32'): GPUBuffer {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    const buffer = this.device.createBuffer({ size: Math.max(64, Math.ceil(bytes / 16) * 16), usage });
    this.made.push(buffer);
    if (dtype === 'u32') return buffer;
    const chunk = this.chunkOf(dtype);
    const encoder = this.device.createCommandEncoder();
    for (let at = 0; at < buffer.size; at += chunk.size)
      encoder.copyBufferToBuffer(chunk, 0, buffer, at, Math.min(chunk.size, buffer.size - at));
    this.device.queue.submit([encoder.finish()]);
    return buffer;
  }

  destroy(): void {
    for (const buffer of [...this.made.splice(0), ...this.chunks.values()]) buffer.destroy();
    this.chunks.clear();
  }

  private chunkOf(dtype: DType): GPUBuffer {
    const known = this.chunks.get(dtype);
    if (known) return known;
    const values = randomValues(CHUNK);
    const view = dtype === 'f16' ? packHalves(values) : values;
    const usage = GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    const chunk = this.device.createBuffer({ size: view.byteLength, usage });
    this.device.queue.writeBuffer(chunk, 0, view);
    this.chunks.set(dtype, chunk);
    return chunk;
  }
}
