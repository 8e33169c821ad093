import { initialValues } from '../model/init.ts';
import { type Model, type ParameterSpec, parameterOf } from '../model/model.ts';
import { CONTROL } from '../ops/control.ts';
import { rowsOf, type ShardSegment } from '../ops/shard/layout.ts';
import type { CompiledRun } from '../schedule/compile.ts';
import type { RankEngine } from '../schedule/rank-engine.ts';
import type { StoredGroup } from '../schedule/storage.ts';

/** Elements that are made and written at once while a rank is set up. */
const PIECE_ELEMENTS = 4 * 2 ** 20;

/** Values of a part of a parameter: `count` elements from flat index `first`. */
export type ParameterSource = (spec: ParameterSpec, first: number, count: number) => Promise<Float32Array<ArrayBuffer>>;

/** The initial values of a fresh model. */
export function freshParameters(seed: number): ParameterSource {
  return async (spec, first, count) => initialValues(spec, seed, first, count);
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
  for (const segment of layout.segments) {
    const spec = parameterOf(run.model, segment.name);
    const { first, count } = heldElements(run, segment);
    for (let done = 0; done < count; done += PIECE_ELEMENTS)
      yield {
        spec,
        first: first + done,
        count: Math.min(PIECE_ELEMENTS, count - done),
        offsetBytes: (segment.shardOffset + done) * 4,
      };
  }
}

function heldElements(run: CompiledRun, segment: ShardSegment): { first: number; count: number } {
  const { first, count } = rowsOf(segment, run.shards.index);
  return { first: first * segment.rowLength, count: count * segment.rowLength };
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
}

/**
 * Fills a rank before its first step: its own part of every parameter, never more, from `source`; optimizer state and
 * control from `optimizer`, or at zero.
 */
export async function fillRank(
  engine: RankEngine,
  run: CompiledRun,
  source: ParameterSource,
  optimizer?: OptimizerStart,
): Promise<void> {
  const { groups, control } = run.steps[0];
  await engine.clear(control.name);
  if (optimizer?.updates) await engine.write(control.name, CONTROL.t * 4, Float32Array.of(optimizer.updates));
  for (const group of groups) {
    await engine.clear(group.parameters.name);
    for (const tensor of Object.values(group.state)) await engine.clear(tensor.name);
    for (const { spec, first, count, offsetBytes } of heldParts(run, group)) {
      await engine.write(group.parameters.name, offsetBytes, await source(spec, first, count));
      for (const [part, tensor] of Object.entries(group.state)) {
        const values = await optimizer?.state(spec.name, part, first, count);
        if (values) await engine.write(tensor.name, offsetBytes, values);
      }
    }
  }
}

/** Names of a model's parameters and their shapes, in state_dict order. */
export function expectedShapes(model: Model): Map<string, readonly number[]> {
  return new Map(model.parameters.map((p) => [p.name, p.shape]));
}
