import { gridOf, type Kernel, PARAMS_BYTES, type Params, type RunsAs, writeParams } from '../ops/kernel.ts';
import type { OpenDevice } from './device.ts';

/** A kernel outside of any schedule, and how it runs. */
export interface FreeCall extends RunsAs {
  readonly kernel: Kernel;
  readonly params: Params;
}

/** Its dispatch with everything made ahead; a bind group for each turn. */
export interface FreeDispatch {
  readonly pipeline: GPUComputePipeline;
  readonly bindGroups: readonly GPUBindGroup[];
  readonly grid: readonly [number, number, number];
}

/**
 * Makes a dispatch over whole buffers ready. Each turn has the buffers of all operands. `buffer` makes the one for its parameters,
 * and whoever called destroys that. Rejects when the kernel does not compile.
 */
export async function freeDispatch(
  { device, kernels, guard }: OpenDevice,
  call: FreeCall,
  turns: readonly (readonly GPUBuffer[])[],
  buffer: (size: number, usage: GPUBufferUsageFlags) => GPUBuffer,
): Promise<FreeDispatch> {
  const { kernel, params } = call;
  const pipeline = await guard(kernels.pipeline({ ...call, operands: [] }));
  const bytes = new ArrayBuffer(PARAMS_BYTES);
  writeParams(kernel, params, kernel.threads(params), new DataView(bytes), 0);
  const uniform = buffer(PARAMS_BYTES, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST);
  device.queue.writeBuffer(uniform, 0, bytes);
  const bindGroups = turns.map((operands) =>
    device.createBindGroup({
      layout: kernels.groupLayout(operands.length),
      entries: [...operands, uniform].map((each, binding) => ({ binding, resource: { buffer: each } })),
    }),
  );
  return { pipeline, bindGroups, grid: gridOf(kernel, params, call) };
}

/** Encodes it into a pass, over the buffers whose turn it is. */
export function encodeFree(pass: GPUComputePassEncoder, { pipeline, bindGroups, grid }: FreeDispatch, turn = 0): void {
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, bindGroups[turn % bindGroups.length]);
  pass.dispatchWorkgroups(...grid);
}
