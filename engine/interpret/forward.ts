import { StudioError } from '../errors.ts';
import type { BatchShape, Model } from '../model/model.ts';
import { elementsOf, Graph, type Value } from '../ops/graph.ts';
import type { View } from '../ops/kernel.ts';

/** Whole parameters of a model by state_dict name, row-major. */
export type WholeParameters = ReadonlyMap<string, Float32Array<ArrayBuffer>>;

/** How long kernels run before whoever else uses this thread gets a turn. */
const TURN_MS = 50;

/**
 * The model's forward pass in plain TypeScript, without loss or dropout: logits [batch · tokens, vocabSize] of `input`, rows
 * of token ids. A value is kept from its first use to its last. Throws StudioError `invalid-config` for a model that has no
 * forward pass by itself, `bad-data` for a missing parameter or one of another size.
 */
export async function forwardLogits(
  model: Model,
  parameters: WholeParameters,
  input: Uint32Array<ArrayBuffer>,
  shape: BatchShape,
): Promise<Float32Array<ArrayBuffer>> {
  if (!model.traceLogits)
    throw new StudioError('invalid-config', 'this model cannot be run without the targets that it is trained on');
  const graph = new Graph();
  const logits = model.traceLogits(graph, shape);
  const views = new Map<number, View>();
  const viewOf = (value: Value): View => {
    let view = views.get(value.id);
    if (!view) {
      view = startOf(value, parameters, input);
      views.set(value.id, view);
    }
    return view;
  };
  const lastUse = new Map<number, number>();
  graph.calls.forEach((call, at) => {
    for (const { id } of call.operands) lastUse.set(id, at);
  });
  let turn = performance.now();
  for (const [at, { kernel, operands, params }] of graph.calls.entries()) {
    if (kernel.threads(params) > 0) kernel.run(operands.map(viewOf), params);
    for (const { id } of operands) if (lastUse.get(id) === at && id !== logits.id) views.delete(id);
    if (performance.now() - turn < TURN_MS) continue;
    await new Promise((resolve) => setTimeout(resolve, 0));
    turn = performance.now();
  }
  return withoutPadding(views.get(logits.id) as Float32Array<ArrayBuffer>, logits.shape, model.vocabSize);
}

/** What a value holds before the first call that uses it. */
function startOf(value: Value, parameters: WholeParameters, input: Uint32Array<ArrayBuffer>): View {
  const elements = elementsOf(value.shape);
  if (value.role === 'batch') return input;
  if (value.data) return value.data;
  if (value.role !== 'parameter') return value.dtype === 'u32' ? new Uint32Array(elements) : new Float32Array(elements);
  const known = parameters.get(value.name);
  if (known?.length !== elements)
    throw new StudioError(
      'bad-data',
      `${value.name} has ${known ? `${known.length} elements` : 'no values'}, the model needs ${elements}`,
    );
  return known;
}

function withoutPadding(
  padded: Float32Array<ArrayBuffer>,
  [rows, stride]: readonly number[],
  columns: number,
): Float32Array<ArrayBuffer> {
  const values = new Float32Array(rows * columns);
  for (let row = 0; row < rows; row++) values.set(padded.subarray(row * stride, row * stride + columns), row * columns);
  return values;
}
