import { StudioError } from '../errors.ts';
import { halfBits } from '../ops/half/half.ts';
import type { ByteChunks } from './byte-source.ts';
import {
  type CheckpointContent,
  MODEL_KEY,
  OPTIMIZER_KEY,
  type OptimizerContent,
  type TensorContent,
} from './checkpoint-content.ts';
import { fromPlain, type PlainValue, type PyDict, type PyValue, tuple } from './python-value.ts';

/** A parameter of the model, or a second name of one. */
export interface CheckpointParameter {
  readonly name: string;
  readonly shape: readonly number[];
  /** Has no optimizer state. */
  readonly frozen?: boolean;
  /** The name whose tensor this one is too: written once, shared in the file, no parameter of its own to the optimizer. */
  readonly tiedTo?: string;
}

/** One optimizer over all parameters, in the config's terms. */
export interface CheckpointOptimizer {
  readonly kind: 'adam' | 'adamw' | 'sgd';
  readonly lr: number;
  readonly betas?: readonly [number, number];
  readonly eps?: number;
  readonly weightDecay: number;
  readonly momentum?: number;
  readonly nesterov?: boolean;
  readonly foreach?: boolean | null;
  /** param_groups of their own: each parameter that is not tied is in one of them. Left out: one group of all. */
  readonly groups?: readonly CheckpointGroup[];
  /** Optimizer steps done: Adam's t. Before the first there is no state, as in torch. */
  readonly step: number;
}

/** Parameters that have their own options; the others are the optimizer's. */
export interface CheckpointGroup {
  readonly names: readonly string[];
  readonly lr: number;
  readonly weightDecay: number;
}

/** Parts of a parameter, by torch's names. */
export type CheckpointPart = 'param' | 'exp_avg' | 'exp_avg_sq' | 'momentum_buffer';

/** What a checkpoint of a run holds, without a way to read it. */
export interface CheckpointDescription {
  /** In the model's order. */
  readonly parameters: readonly CheckpointParameter[];
  readonly optimizer: CheckpointOptimizer | null;
  /** Optimizer steps done. */
  readonly iter: number;
  /** The run's ExperimentConfig. */
  readonly config: PlainValue;
  /** What parameters and optimizer state are stored as; float32 if left out. */
  readonly dtype?: 'float32' | 'float16';
  /** Further keys beside model, optimizer, iter and config, such as the samples consumed. */
  readonly extra?: Readonly<Record<string, PlainValue>>;
}

/** float32 elements [first, first + count) of a part of a parameter, row-major. */
export type PartReader = (name: string, part: CheckpointPart, first: number, count: number) => ByteChunks;

const RESERVED_KEYS = [MODEL_KEY, OPTIMIZER_KEY, 'iter', 'config'];

/** The content of a run's checkpoint, as Fabric names it. `read` is asked when a writer has come to a tensor. */
export function checkpointContent(description: CheckpointDescription, read: PartReader): CheckpointContent {
  const { parameters, optimizer, iter, config, dtype = 'float32', extra = {} } = description;
  const content = (name: string, shape: readonly number[], part: CheckpointPart): TensorContent => ({
    kind: 'tensor-content',
    dtype,
    shape,
    read: (first, count) => {
      const floats = read(name, part, first, count);
      return dtype === 'float16' ? asHalves(floats) : floats;
    },
  });
  const model = new Map<string, TensorContent>();
  for (const { name, shape, tiedTo } of parameters) {
    const tied = tiedTo === undefined ? undefined : model.get(tiedTo);
    if (tiedTo !== undefined && !tied)
      throw new StudioError('internal', `${name} is tied to ${tiedTo}, which does not come before it.`);
    model.set(name, tied ?? content(name, shape, 'param'));
  }
  const rest: PyDict = new Map<PyValue, PyValue>([
    ['iter', iter],
    ['config', fromPlain(config)],
  ]);
  for (const [key, value] of Object.entries(extra)) {
    if (RESERVED_KEYS.includes(key)) throw new StudioError('internal', `A checkpoint already has a key ${key}.`);
    rest.set(key, fromPlain(value));
  }
  return { model, optimizer: optimizer && optimizerContent(parameters, optimizer, content), rest };
}

/** The same elements as halves. A chunk has whole float32 elements. */
async function* asHalves(chunks: ByteChunks): AsyncGenerator<Uint8Array> {
  for await (const chunk of chunks) {
    const floats = new Float32Array(chunk.slice().buffer);
    yield new Uint8Array(Uint16Array.from(floats, halfBits).buffer);
  }
}

function optimizerContent(
  parameters: readonly CheckpointParameter[],
  optimizer: CheckpointOptimizer,
  content: (name: string, shape: readonly number[], part: CheckpointPart) => TensorContent,
): OptimizerContent {
  const own = parameters.filter(({ tiedTo }) => tiedTo === undefined);
  const parts = stateParts(optimizer);
  const state = new Map<string, ReadonlyMap<string, PyValue>>();
  for (const { name, shape, frozen } of optimizer.step > 0 && parts.length > 0 ? own : []) {
    if (frozen) continue;
    const entries: [string, PyValue][] = parts.map((part) => [part, content(name, shape, part)]);
    if (optimizer.kind !== 'sgd') entries.unshift(['step', float32Scalar(optimizer.step)]);
    state.set(name, new Map(entries));
  }
  const { lr, weightDecay } = optimizer;
  const groups = optimizer.groups ?? [{ lr, weightDecay, names: own.map(({ name }) => name) }];
  return {
    state,
    groups: groups.map(({ names, ...changed }) => {
      const group = optionsOf({ ...optimizer, ...changed });
      return group.set('params', [...names]);
    }),
  };
}

function stateParts(optimizer: CheckpointOptimizer): CheckpointPart[] {
  if (optimizer.kind !== 'sgd') return ['exp_avg', 'exp_avg_sq'];
  return (optimizer.momentum ?? 0) !== 0 ? ['momentum_buffer'] : [];
}

/** Every option that torch 2.11's optimizer writes into a param_group, in its order. */
function optionsOf(optimizer: CheckpointOptimizer): PyDict {
  const { kind, lr, betas = [0.9, 0.999], eps = 1e-8, weightDecay, momentum = 0, nesterov = false } = optimizer;
  const foreach = optimizer.foreach ?? null;
  const sgd: [PyValue, PyValue][] = [
    ['lr', lr],
    ['momentum', momentum],
    ['dampening', 0],
    ['weight_decay', weightDecay],
    ['nesterov', nesterov],
    ['maximize', false],
    ['foreach', foreach],
    ['differentiable', false],
    ['fused', null],
  ];
  const adam: [PyValue, PyValue][] = [
    ['lr', lr],
    ['betas', tuple(...betas)],
    ['eps', eps],
    ['weight_decay', weightDecay],
    ['amsgrad', false],
    ['maximize', false],
    ['foreach', foreach],
    ['capturable', false],
    ['differentiable', false],
    ['fused', null],
    ['decoupled_weight_decay', kind === 'adamw'],
  ];
  return new Map(kind === 'sgd' ? sgd : adam);
}

/** torch keeps Adam's t as a tensor of no dimensions. */
function float32Scalar(value: number): TensorContent {
  const bytes = new Uint8Array(Float32Array.of(value).buffer);
  return {
    kind: 'tensor-content',
    dtype: 'float32',
    shape: [],
    read: (first, count) => [bytes.slice(4 * first, 4 * (first + count))],
  };
}
