import { gridOf, PARAMS_BYTES, writeParams } from '../ops/kernel.ts';
import type { ExecutableStep } from '../schedule/compile.ts';
import { UNIFORM_SLOT_BYTES } from '../schedule/memory.ts';
import { type Dispatch, dispatches } from '../schedule/schedule.ts';
import type { OpenDevice } from './device.ts';
import type { Slabs } from './slabs.ts';

/** A dispatch with everything made ahead: encoding it is three calls. */
export interface PreparedDispatch {
  readonly dispatch: Dispatch;
  readonly pipeline: GPUComputePipeline;
  readonly bindGroup: GPUBindGroup;
  readonly grid: readonly [number, number, number];
}

/**
 * Makes the pipelines, uniforms and bind groups of every dispatch of a step, by step id. Dispatches of no threads are left
 * out.
 */
export async function prepareDispatches(
  { device, kernels }: OpenDevice,
  slabs: Slabs,
  step: ExecutableStep,
): Promise<PreparedDispatch[][]> {
  const all = step.schedule.steps.map((s) => dispatches(s.action));
  const count = all.reduce((n, list) => n + list.length, 0);
  const uniforms = new ArrayBuffer(count * UNIFORM_SLOT_BYTES);
  const view = new DataView(uniforms);
  const pipelines = new Map<Dispatch, GPUComputePipeline>();
  await Promise.all(all.flat().map(async (d) => pipelines.set(d, await kernels.pipeline(d))));
  let slot = 0;
  const prepared = all.map((list) =>
    list.flatMap((dispatch): PreparedDispatch[] => {
      const { kernel, operands, params } = dispatch;
      const offset = slot++ * UNIFORM_SLOT_BYTES;
      const threads = kernel.threads(params);
      writeParams(kernel, params, threads, view, offset);
      if (threads === 0) return [];
      const entries = operands.map((range, binding) => {
        const { buffer, offset: at, size } = slabs.place(step, range);
        return { binding, resource: { buffer, offset: at, size } };
      });
      const uniform = { buffer: slabs.uniforms, offset: step.uniformOffsetBytes + offset, size: PARAMS_BYTES };
      const bindGroup = device.createBindGroup({
        label: kernel.name,
        layout: kernels.groupLayout(operands.length),
        entries: [...entries, { binding: operands.length, resource: uniform }],
      });
      return [{ dispatch, pipeline: pipelines.get(dispatch)!, bindGroup, grid: gridOf(kernel, params, dispatch) }];
    }),
  );
  if (count > 0) device.queue.writeBuffer(slabs.uniforms, step.uniformOffsetBytes, uniforms);
  return prepared;
}
