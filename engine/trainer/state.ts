import { initDispatches, initialValues } from '../model/init.ts';
import { type ParameterSpec, parameterOf } from '../model/model.ts';
import { CONTROL } from '../ops/control.ts';
import { elementsOf } from '../ops/graph.ts';
import { LOSS_SCALE } from '../ops/optimizer/loss-scale.ts';
import { rowsOf, type ShardSegment } from '../ops/shard/layout.ts';
import { type CompiledRun, QUANTILES_TENSOR } from '../schedule/compile.ts';
import type { RankEngine } from '../schedule/rank-engine.ts';
import type { StoredGroup } from '../schedule/storage.ts';

/** Elements that are made and written at once while a rank is set up. */
const PIECE_ELEMENTS = 4 * 2 ** 20;

/** Values of a part of a parameter: `count` elements from flat index `first`. */
export interface ParameterSource {
  (spec: ParameterSpec, first: number, count: number): Promise<Float32Array<ArrayBuffer>>;
  /** The seed of which all values are the initial ones: a device can make those itself. */
  readonly seed?: number;
}

/** The initial values of a fresh model. */
export function freshParameters(seed: number): ParameterSource {
  const source = async (spec: ParameterSpec, first: number, count: number) => initialValues(spec, seed, first, count);
  return Object.assign(source, { seed });
}

/** A part of a parameter that a rank holds: flat elements `first` … `first + count` lie at `offsetBytes` of the group's tensors. */
export interface HeldPart {
  readonly spec: ParameterSpec;
  readonly first: number;
  readonly count: number;
  readonly offsetBytes: number;
}

/** What this rank holds of each parameter of a group, in pieces. */
export function* heldParts(run: CompiledRun, { layout }: StoredGroup): Generator<HeldPart> {
  for (const segment of layout.segments) yield* piecesOf(heldPart(run, segment));
}

/** What this rank holds of one parameter; `count` 0 where it has no rows of it. */
function heldPart(run: CompiledRun, segment: ShardSegment): HeldPart {
  const { first, count } = rowsOf(segment, run.shards.index);
  return {
    spec: parameterOf(run.model, segment.name),
    first: first * segment.rowLength,
    count: count * segment.rowLength,
    offsetBytes: segment.shardOffset * 4,
  };
}

function* piecesOf({ spec, first, count, offsetBytes }: HeldPart): Generator<HeldPart> {
  for (let done = 0; done < count; done += PIECE_ELEMENTS)
    yield {
      spec,
      first: first + done,
      count: Math.min(PIECE_ELEMENTS, count - done),
      offsetBytes: offsetBytes + done * 4,
    };
}

/** Values of a part of the state of a parameter's optimizer; null where it starts at zero. */
export type StateSource = (
  name: string,
  part: string,
  first: number,
  count: number,
) => Promise<Float32Array<ArrayBuffer> | null>;

/** What a rank goes on with beside its parameters. */
export interface OptimizerStart {
  /** Updates made: Adam's t. */
  readonly updates: number;
  readonly state: StateSource;
  /** Where dynamic loss scaling stood; it starts anew if left out. */
  readonly scaler?: { readonly scale: number; readonly goodSteps: number } | null;
}

/**
 * Fills a rank before its first step: its own part of every parameter from `source`; optimizer state and control from
 * `optimizer`, or at zero.
 * What else is made is the mode of init: `empty` makes a piece of its own rows at a time, `cpu` each whole parameter on
 * the host, of which it keeps its rows, and `device` has its rows made where they stay.
 */
export async function fillRank(
  engine: Pick<RankEngine, 'clear' | 'write' | 'make'>,
  run: CompiledRun,
  source: ParameterSource,
  optimizer?: OptimizerStart,
): Promise<void> {
  const { groups, control } = run.steps[0];
  await engine.clear(control.name);
  if (run.precision.scalesLoss) {
    const { scale, goodSteps } = optimizer?.scaler ?? { scale: LOSS_SCALE.initial, goodSteps: 0 };
    await engine.write(control.name, CONTROL.lossScale * 4, Float32Array.of(scale, goodSteps));
  }
  if (optimizer?.updates) await engine.write(control.name, CONTROL.t * 4, Float32Array.of(optimizer.updates));
  for (const group of groups) {
    await engine.clear(group.parameters.name);
    for (const tensor of Object.values(group.state)) await engine.clear(tensor.name);
    for (const segment of group.layout.segments) await fillParameter(engine, run, group, segment, source);
    for (const { spec, first, count, offsetBytes } of heldParts(run, group)) {
      for (const [part, tensor] of Object.entries(group.state)) {
        const values = await optimizer?.state(spec.name, part, first, count);
        if (values) await engine.write(tensor.name, offsetBytes, values);
      }
    }
  }
}

async function fillParameter(
  engine: Pick<RankEngine, 'write' | 'make'>,
  run: CompiledRun,
  { parameters }: StoredGroup,
  segment: ShardSegment,
  source: ParameterSource,
): Promise<void> {
  const held = heldPart(run, segment);
  const { spec, first, count, offsetBytes } = held;
  if (run.init.device && source.seed !== undefined) {
    for (const { kernel, params } of initDispatches(spec, source.seed, first, count, offsetBytes / 4))
      await engine.make(kernel, [parameters.name, QUANTILES_TENSOR].slice(0, kernel.operands.length), params);
    return;
  }
  const whole = run.init.mode === 'cpu' ? await source(spec, 0, elementsOf(spec.shape)) : null;
  for (const piece of piecesOf(held)) {
    const end = piece.first + piece.count;
    const values = whole ? whole.slice(piece.first, end) : await source(spec, piece.first, piece.count);
    await engine.write(parameters.name, piece.offsetBytes, values);
  }
}
