import { StudioError } from '../errors.ts';
import { halfBits } from '../ops/half/half.ts';
import type { ByteChunks, ByteSink, ByteSource } from './byte-source.ts';
import {
  type CheckpointContent,
  contentTree,
  MODEL_KEY,
  OPTIMIZER_KEY,
  type OptimizerContent,
  type TensorContent,
} from './checkpoint-content.ts';
import { fromPlain, type PlainValue, type PyDict, type PyValue, toPlain, tuple } from './python-value.ts';
import { openTorchFile, type TorchFile } from './torch-file.ts';
import { torchFileBytes, writeTorchFile } from './torch-file-writer.ts';
import { isTensor, type TorchTensor } from './torch-globals.ts';
import { asOptimizer, findStateDicts } from './weights-file.ts';

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

export interface FullCheckpoint {
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
  /** Full float32 elements, row-major; asked for one at a time in the file's order: all params, then the state of each. */
  readonly read: (name: string, part: CheckpointPart) => ByteChunks;
}

/**
 * Writes a full checkpoint as Lightning Fabric does: one torch file of { model, optimizer, iter, config }, the model as an
 * OrderedDict, the optimizer's state by parameter name. No more than a chunk is in memory. Returns the size of the file.
 */
export function writeFullCheckpoint(checkpoint: FullCheckpoint, sink: ByteSink): Promise<number> {
  return writeTorchFile(checkpointTree(checkpoint), sink);
}

/** The exact size in bytes of what `writeFullCheckpoint` makes; nothing is read. */
export function fullCheckpointBytes(checkpoint: FullCheckpoint): number {
  return torchFileBytes(checkpointTree(checkpoint));
}

/** What a checkpoint of a run holds, without a way to read it. */
export type CheckpointDescription = Omit<FullCheckpoint, 'read'>;

/** float32 elements [first, first + count) of a part of a parameter, row-major. */
export type PartReader = (name: string, part: CheckpointPart, first: number, count: number) => ByteChunks;

const RESERVED_KEYS = [MODEL_KEY, OPTIMIZER_KEY, 'iter', 'config'];

function checkpointTree({ read, ...description }: FullCheckpoint): PyValue {
  return contentTree(checkpointContent(description, (name, part) => read(name, part)));
}

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

/** The state of one optimizer in a file, by the names of the model in the same file. */
export interface StoredOptimizer {
  /** Its key in the file. */
  readonly key: string;
  /** Options of each param_group, without `params`. */
  readonly groups: readonly Readonly<Record<string, PlainValue>>[];
  /** Names of the parameters of each group. */
  readonly groupNames: readonly (readonly string[])[];
  /** Name → part (step, exp_avg, …) → tensor. */
  readonly state: ReadonlyMap<string, ReadonlyMap<string, TorchTensor>>;
}

/** A full checkpoint, opened. Elements are read with `file.readTensor`. */
export interface StoredCheckpoint {
  readonly file: TorchFile;
  /** Where the model was found: keys from the top. */
  readonly modelPath: readonly string[];
  readonly model: ReadonlyMap<string, TorchTensor>;
  readonly optimizers: readonly StoredOptimizer[];
  readonly iter: number | null;
  readonly config: PlainValue | null;
  /** The other keys of the file, as plain data. */
  readonly extra: Readonly<Record<string, PlainValue>>;
}

/**
 * Opens a full checkpoint, ours or Fabric's: the model is the state dict, found by its shape; optimizers under any key, by
 * name or by number (numbers count through the model's names). Errors: those of `openTorchFile`; 'bad-file' where there
 * is no model, or more than one, or optimizer state for parameters that are not there.
 */
export async function readFullCheckpoint(source: ByteSource): Promise<StoredCheckpoint> {
  const file = await openTorchFile(source);
  const found = findStateDicts(file.value);
  if (found.length !== 1 || !(file.value instanceof Map)) {
    throw new StudioError('bad-file', `${source.name} holds ${found.length} models; a full checkpoint holds one.`, {
      file: source.name,
    });
  }
  const [{ path: modelPath, stateDict: model }] = found;
  const optimizers: StoredOptimizer[] = [];
  const extra: Record<string, PlainValue> = {};
  for (const [key, value] of modelPath.length > 0 ? file.value : []) {
    const name = String(key);
    const optimizer = asOptimizer(value);
    if (optimizer) optimizers.push(storedOptimizer(source, name, optimizer, [...model.keys()]));
    else if (!['iter', 'config', modelPath[0]].includes(name)) extra[name] = toPlain(value) ?? null;
  }
  const iter = file.value.get('iter');
  const config = modelPath.length > 0 ? file.value.get('config') : undefined;
  return {
    file,
    modelPath,
    model,
    optimizers,
    iter: typeof iter === 'number' ? iter : null,
    config: config === undefined ? null : (toPlain(config) ?? null),
    extra,
  };
}

function storedOptimizer(source: ByteSource, key: string, value: PyDict, names: readonly string[]): StoredOptimizer {
  const bad = (what: string): StudioError =>
    new StudioError('bad-file', `${source.name}: its ${key} ${what}.`, { file: source.name, key });
  const groups: Record<string, PlainValue>[] = [];
  const params: PyValue[][] = [];
  for (const group of value.get('param_groups') as PyValue[]) {
    const members = group instanceof Map ? group.get('params') : undefined;
    if (!(group instanceof Map) || !Array.isArray(members)) throw bad('has a param_group without params');
    const options = new Map([...group].filter(([option]) => option !== 'params'));
    groups.push(toPlain(options) as Record<string, PlainValue>);
    params.push(members);
  }
  const total = params.reduce((sum, members) => sum + members.length, 0);
  const nameOf = (id: PyValue): string => {
    if (typeof id === 'string') return id;
    if (typeof id !== 'number') throw bad('has a parameter that is neither a name nor a number');
    // torch numbers parameters in the order in which they were given to the optimizer: model.parameters(), all of them.
    if (params.length !== 1 || total !== names.length || names[id] === undefined) {
      throw bad(
        `numbers ${total} parameters in ${params.length} group(s), which cannot be told from the ${names.length} names of the model`,
      );
    }
    return names[id];
  };
  const state = new Map<string, ReadonlyMap<string, TorchTensor>>();
  for (const [id, parts] of value.get('state') as PyDict) {
    const name = nameOf(id);
    if (!names.includes(name)) throw bad(`has state for ${name}, which the model does not have`);
    const tensors =
      parts instanceof Map ? [...parts].filter((entry): entry is [string, TorchTensor] => isTensor(entry[1])) : [];
    state.set(name, new Map(tensors));
  }
  return { key, groups, groupNames: params.map((members) => members.map(nameOf)), state };
}
