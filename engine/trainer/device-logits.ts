import { StudioError } from '../errors.ts';
import type { WholeParameters } from '../interpret/forward.ts';
import type { Model } from '../model/model.ts';
import { bytesOf, elementsOf, Graph, type Value } from '../ops/graph.ts';
import { gridOf, PARAMS_BYTES, runsAs, writeParams } from '../ops/kernel.ts';
import { BufferLedger } from '../runtime/buffer-ledger.ts';
import type { OpenDevice } from '../runtime/device.ts';
import { readMapped } from '../runtime/staging.ts';
import type { NextLogits } from './sample.ts';

/** Distance of the uniforms of two dispatches: every device's alignment. */
const UNIFORM_SLOT_BYTES = 256;
/** Bytes of a parameter that are written at once. */
const PIECE_BYTES = 64 * 2 ** 20;

export interface DeviceLogitsOptions {
  /** Whether the device is a software one: it runs the barrier-free variants. */
  readonly software: boolean;
  /** The longest sequence that will be asked for. */
  readonly maxTokens: number;
}

export interface DeviceLogits {
  readonly next: NextLogits;
  /** Bytes of all buffers. */
  readonly bytes: number;
  close(): void;
}

interface PreparedCall {
  readonly pipeline: GPUComputePipeline;
  readonly bindGroup: GPUBindGroup;
  readonly grid: readonly [number, number, number];
}

/**
 * A device as the engine of `sampleTokens`. The forward pass is made ready once, for `maxTokens` tokens: a token sees none
 * that follow it, so what lies behind a shorter sequence changes nothing. Values whose lives do not meet share a buffer.
 * Throws StudioError `invalid-config` for a model that cannot continue a text, `out-of-memory`, `bad-data` for a parameter
 * that is missing or of another size.
 */
export async function openDeviceLogits(
  model: Model,
  parameters: WholeParameters,
  open: OpenDevice,
  { software, maxTokens }: DeviceLogitsOptions,
): Promise<DeviceLogits> {
  const { device } = open;
  if (!model.traceLogits)
    throw new StudioError('invalid-config', 'this model cannot be run without the targets that it is trained on');
  const graph = new Graph();
  const logits = model.traceLogits(graph, { batch: 1, tokens: maxTokens });
  const input = graph.values.find((value) => value.role === 'batch')!;
  const ledger = new BufferLedger(device);
  try {
    const buffers = await makeBuffers(graph, logits, parameters, device, ledger);
    const calls = await prepare(graph, buffers, open, ledger, software);
    const rowBytes = logits.shape[1] * 4;
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    const download = await ledger.create('logits', rowBytes, usage);
    const next: NextLogits = async (tokens) => {
      if (tokens.length > maxTokens)
        throw new StudioError('internal', `${tokens.length} tokens, the device was made ready for ${maxTokens}`);
      device.queue.writeBuffer(buffers.get(input.id)!, 0, Uint32Array.from(tokens));
      const encoder = device.createCommandEncoder();
      const pass = encoder.beginComputePass();
      for (const { pipeline, bindGroup, grid } of calls) {
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, bindGroup);
        pass.dispatchWorkgroups(...grid);
      }
      pass.end();
      encoder.copyBufferToBuffer(buffers.get(logits.id)!, (tokens.length - 1) * rowBytes, download, 0, rowBytes);
      device.queue.submit([encoder.finish()]);
      const take = (mapped: Uint8Array) => new Float32Array(mapped.slice().buffer);
      return open.guard(readMapped(download, model.vocabSize * 4, take));
    };
    return { next, bytes: ledger.currentBytes, close: () => ledger.destroyAll() };
  } catch (error) {
    ledger.destroyAll();
    throw error;
  }
}

/** A buffer for each value: parameters and constants their own, the rest those that are free by then. */
async function makeBuffers(
  graph: Graph,
  logits: Value,
  parameters: WholeParameters,
  device: GPUDevice,
  ledger: BufferLedger,
): Promise<Map<number, GPUBuffer>> {
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
  const buffers = new Map<number, GPUBuffer>();
  const free = new Map<number, GPUBuffer[]>();
  const lastUse = new Map<number, number>();
  graph.calls.forEach((call, at) => {
    for (const { id } of call.operands) lastUse.set(id, at);
  });
  for (const [at, { operands }] of graph.calls.entries()) {
    for (const value of operands) {
      if (buffers.has(value.id)) continue;
      const bytes = bytesOf(value);
      if (bytes > device.limits.maxStorageBufferBindingSize)
        throw new StudioError(
          'out-of-memory',
          `${value.name} has ${bytes} bytes, and the device binds at most ${device.limits.maxStorageBufferBindingSize} at once`,
        );
      const contents = value.role === 'parameter' ? parameterOf(value, parameters) : value.data;
      const buffer = (contents ? undefined : free.get(bytes)?.pop()) ?? (await ledger.create(value.name, bytes, usage));
      if (contents) upload(device, buffer, contents);
      buffers.set(value.id, buffer);
    }
    for (const value of new Set(operands)) {
      const isKept = value.role !== 'activation' && value.role !== 'workspace';
      if (isKept || value === logits || lastUse.get(value.id) !== at) continue;
      const bytes = bytesOf(value);
      free.set(bytes, [...(free.get(bytes) ?? []), buffers.get(value.id)!]);
    }
  }
  return buffers;
}

function parameterOf(value: Value, parameters: WholeParameters): Float32Array<ArrayBuffer> {
  const known = parameters.get(value.name);
  if (known?.length === elementsOf(value.shape)) return known;
  throw new StudioError(
    'bad-data',
    `${value.name} has ${known ? `${known.length} elements` : 'no values'}, the model needs ${elementsOf(value.shape)}`,
  );
}

function upload(device: GPUDevice, buffer: GPUBuffer, contents: Float32Array<ArrayBuffer>): void {
  for (let at = 0; at < contents.byteLength; at += PIECE_BYTES)
    device.queue.writeBuffer(buffer, at, contents, at / 4, Math.min(PIECE_BYTES, contents.byteLength - at) / 4);
}

async function prepare(
  graph: Graph,
  buffers: ReadonlyMap<number, GPUBuffer>,
  { device, kernels }: OpenDevice,
  ledger: BufferLedger,
  software: boolean,
): Promise<PreparedCall[]> {
  const calls = graph.calls.filter(({ kernel, params }) => kernel.threads(params) > 0);
  const ways = calls.map(({ kernel, params }) => runsAs(kernel, params, software));
  const pipelines = await Promise.all(calls.map((call, i) => kernels.pipeline({ ...call, operands: [], ...ways[i] })));
  const bytes = new ArrayBuffer(calls.length * UNIFORM_SLOT_BYTES);
  const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
  const uniforms = await ledger.create('uniforms', bytes.byteLength, usage);
  const prepared = calls.map((call, i): PreparedCall => {
    const { kernel, operands, params } = call;
    const threads = kernel.threads(params);
    const offset = i * UNIFORM_SLOT_BYTES;
    writeParams(kernel, params, threads, new DataView(bytes), offset);
    const storage = operands.map((value, binding) => ({
      binding,
      resource: { buffer: buffers.get(value.id)!, size: bytesOf(value) },
    }));
    const uniform = { binding: operands.length, resource: { buffer: uniforms, offset, size: PARAMS_BYTES } };
    const layout = kernels.groupLayout(operands.length);
    const bindGroup = device.createBindGroup({ label: kernel.name, layout, entries: [...storage, uniform] });
    return { pipeline: pipelines[i], bindGroup, grid: gridOf(kernel, params, ways[i]) };
  });
  device.queue.writeBuffer(uniforms, 0, bytes);
  return prepared;
}
