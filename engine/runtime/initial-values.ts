import { fill } from '../ops/fill/fill.ts';
import { initNormal } from '../ops/init-values/init-normal.ts';
import { initUniform } from '../ops/init-values/init-uniform.ts';
import { foldGrid, PARAMS_BYTES, writeParams } from '../ops/kernel.ts';
import type { ExecutableRun, ExecutableStep } from '../schedule/compile.ts';
import type { Dispatch } from '../schedule/schedule.ts';
import type { OpenDevice } from './device.ts';
import type { Slabs } from './slabs.ts';

/** Makes the pipelines of the kernels that make initial values, where the plan lets the device do so. */
export async function prepareInitialValues({ kernels }: OpenDevice, run: ExecutableRun): Promise<void> {
  if (!run.init.device) return;
  const makers = [fill, initNormal, initUniform].map((kernel) => ({ kernel, operands: [], params: {}, tiled: false }));
  await Promise.all(makers.map((dispatch) => kernels.pipeline(dispatch)));
}

/** Submits one dispatch by itself, its parameters in the slot at `uniformOffsetBytes`: the queue keeps their order. */
export async function dispatchOnce(
  { device, kernels }: OpenDevice,
  slabs: Slabs,
  step: ExecutableStep,
  dispatch: Dispatch,
  uniformOffsetBytes: number,
): Promise<void> {
  const { kernel, operands, params } = dispatch;
  const threads = kernel.threads(params);
  if (threads === 0) return;
  const uniforms = new ArrayBuffer(PARAMS_BYTES);
  writeParams(kernel, params, threads, new DataView(uniforms), 0);
  device.queue.writeBuffer(slabs.uniforms, uniformOffsetBytes, uniforms);
  const pipeline = await kernels.pipeline(dispatch);
  const entries = operands.map((range, binding) => {
    const { buffer, offset, size } = slabs.place(step, range);
    return { binding, resource: { buffer, offset, size } };
  });
  const uniform = { buffer: slabs.uniforms, offset: uniformOffsetBytes, size: PARAMS_BYTES };
  const bindGroup = device.createBindGroup({
    label: kernel.name,
    layout: kernels.groupLayout(operands.length),
    entries: [...entries, { binding: operands.length, resource: uniform }],
  });
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, bindGroup);
  pass.dispatchWorkgroups(...foldGrid(threads));
  pass.end();
  device.queue.submit([encoder.finish()]);
}
