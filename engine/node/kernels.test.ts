import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { allCases } from '../ops/all-cases.ts';
import { unpackHalves } from '../ops/half/half.ts';
import {
  foldGrid,
  type Kernel,
  PARAMS_BYTES,
  type Params,
  pipelineKey,
  shaderSource,
  tiledVariant,
  type View,
  writeParams,
} from '../ops/kernel.ts';
import { caseViews, type KernelCase } from '../ops/kernel-case.ts';
import { kernels } from '../ops/registry.ts';
import { openAdapter, openNullAdapter } from './adapters.ts';

/** A device with all that the adapter allows, and the errors that no scope caught. */
interface Opened {
  readonly device: GPUDevice;
  readonly errors: string[];
}

async function openDevice(adapter: GPUAdapter): Promise<Opened> {
  const { limits } = adapter;
  const device = await adapter.requestDevice({
    requiredLimits: {
      maxBufferSize: limits.maxBufferSize,
      maxStorageBufferBindingSize: limits.maxStorageBufferBindingSize,
      maxStorageBuffersPerShaderStage: limits.maxStorageBuffersPerShaderStage,
      maxComputeInvocationsPerWorkgroup: limits.maxComputeInvocationsPerWorkgroup,
      maxComputeWorkgroupStorageSize: limits.maxComputeWorkgroupStorageSize,
    },
  });
  const errors: string[] = [];
  device.addEventListener('uncapturederror', (event) => {
    event.preventDefault();
    errors.push(event.error.message);
  });
  return { device, errors };
}

function compile(device: GPUDevice, kernel: Kernel, params: Params, tiled: boolean): Promise<GPUComputePipeline> {
  const module = device.createShaderModule({ code: shaderSource(kernel, params, tiled) });
  // Not an automatic layout: that leaves out an operand which the kernel does not use.
  const types: GPUBufferBindingType[] = [...kernel.operands.map(() => 'storage' as const), 'uniform'];
  const entries = types.map((type, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } }));
  const layout = device.createPipelineLayout({ bindGroupLayouts: [device.createBindGroupLayout({ entries })] });
  return device.createComputePipelineAsync({ layout, compute: { module, entryPoint: 'main' } });
}

/** Bindings cannot be empty, and their sizes are multiples of 4. */
const bufferBytes = (view: View) => Math.max(16, view.byteLength);

/** Runs one dispatch and gives back every operand. */
async function dispatch(
  device: GPUDevice,
  pipeline: GPUComputePipeline,
  { kernel, params }: KernelCase,
  views: readonly View[],
  tiled: boolean,
): Promise<View[]> {
  const threads = kernel.threads(params);
  const [x, y, z = 1] = (tiled && tiledVariant(kernel, params)?.workgroups(params)) || foldGrid(threads);
  const buffers = views.map((view) => {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const buffer = device.createBuffer({ size: bufferBytes(view), usage });
    device.queue.writeBuffer(buffer, 0, view);
    return buffer;
  });
  const uniform = device.createBuffer({ size: PARAMS_BYTES, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
  const bytes = new ArrayBuffer(PARAMS_BYTES);
  writeParams(kernel, params, threads, new DataView(bytes), 0);
  device.queue.writeBuffer(uniform, 0, bytes);
  const readback = device.createBuffer({
    size: buffers.reduce((sum, { size }) => sum + size, 0),
    usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
  });
  const encoder = device.createCommandEncoder();
  if (threads > 0) {
    const entries = [...buffers, uniform].map((buffer, binding) => ({ binding, resource: { buffer } }));
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
    pass.dispatchWorkgroups(x, y, z);
    pass.end();
  }
  let at = 0;
  for (const buffer of buffers) {
    encoder.copyBufferToBuffer(buffer, 0, readback, at, buffer.size);
    at += buffer.size;
  }
  device.queue.submit([encoder.finish()]);
  await readback.mapAsync(GPUMapMode.READ);
  const all = readback.getMappedRange().slice(0);
  at = 0;
  const results = views.map((view, i) => {
    const from = at;
    at += buffers[i].size;
    const Array_ = view instanceof Float32Array ? Float32Array : Uint32Array;
    return new Array_(all, from, view.length);
  });
  for (const buffer of [...buffers, uniform, readback]) buffer.destroy();
  return results;
}

/** The first element that differs by more than the case allows, in words. */
function firstDifference(
  { kernel, tolerance }: KernelCase,
  got: readonly View[],
  want: readonly View[],
): string | null {
  const numbers = (view: View, operand: number) =>
    kernel.operands[operand].dtype === 'f16' ? unpackHalves(view as Uint32Array) : view;
  for (let operand = 0; operand < want.length; operand++) {
    const [gotNumbers, wantNumbers] = [numbers(got[operand], operand), numbers(want[operand], operand)];
    for (let i = 0; i < wantNumbers.length; i++) {
      const [g, w] = [gotNumbers[i], wantNumbers[i]];
      // Infinity or NaN: devices differ in which, and a run stops at either.
      if (!Number.isFinite(g) && !Number.isFinite(w)) continue;
      if (g === w || Math.abs(g - w) <= tolerance * Math.max(1, Math.abs(w))) continue;
      return `${kernel.operands[operand].name}[${i}] is ${g}, not ${w}`;
    }
  }
  return null;
}

test('every kernel has a case, and every tiled variant one that it fits', () => {
  const has = (kernel: Kernel, tiled: boolean) =>
    allCases.some((c) => c.kernel === kernel && (!tiled || kernel.tiled?.fits(c.params)));
  const missing = [...kernels.values()].filter((k) => !has(k, k.tiled !== undefined)).map(({ name }) => name);
  // Kernels that differ only in what they store share a special variant's cases.
  const special = new Set(allCases.map((c) => tiledVariant(c.kernel, c.params)?.name));
  for (const { name, tiled } of kernels.values())
    for (const variant of tiled?.special ?? []) if (!special.has(variant.name)) missing.push(`${name} ${variant.name}`);
  expect(missing).toEqual([]);
});

describe("on Dawn's null backend", () => {
  let opened: Opened;
  beforeAll(async () => {
    opened = await openDevice(await openNullAdapter());
  });
  afterAll(() => opened.device.destroy());

  const variants = new Map<string, readonly [KernelCase, boolean]>();
  for (const testCase of allCases) {
    const { kernel, params } = testCase;
    for (const tiled of kernel.tiled?.fits(params) ? [false, true] : [false]) {
      variants.set(pipelineKey(kernel, params, tiled), [testCase, tiled]);
    }
  }
  test.each([...variants])('%s compiles', async (_, [{ kernel, params }, tiled]) => {
    await compile(opened.device, kernel, params, tiled).catch((error: Error) => {
      // This backend has 16 KiB for a workgroup. A shader that asks for more, and is right otherwise, runs on the adapter.
      if (!error.message.includes('total use of workgroup storage')) throw error;
    });
    expect(opened.errors.splice(0)).toEqual([]);
  });
});

describe('on an adapter', () => {
  let opened: Opened;
  const pipelines = new Map<string, Promise<GPUComputePipeline>>();
  beforeAll(async () => {
    opened = await openDevice((await openAdapter('auto', { validate: true })).adapter);
  }, 60_000);
  afterAll(() => opened.device.destroy());

  const runs = allCases.flatMap((testCase) => {
    const { kernel, name, params } = testCase;
    const label = `${kernel.name}, ${name}`;
    return [
      { label, testCase, tiled: false },
      ...(kernel.tiled?.fits(params) ? [{ label: `${label}, tiled`, testCase, tiled: true }] : []),
    ];
  });
  test.each(runs)('$label', { timeout: 30_000 }, async ({ testCase, tiled }) => {
    const { kernel, params } = testCase;
    const key = pipelineKey(kernel, params, tiled);
    if (!pipelines.has(key)) pipelines.set(key, compile(opened.device, kernel, params, tiled));
    const want = caseViews(testCase, 1);
    const got = await dispatch(opened.device, await pipelines.get(key)!, testCase, caseViews(testCase, 1), tiled);
    kernel.run(want, params);
    expect(opened.errors.splice(0)).toEqual([]);
    expect(firstDifference(testCase, got, want)).toBeNull();
  });
});
