import { StudioError } from '../errors.ts';
import type { ByteChunks } from './byte-source.ts';
import { type DType, elementCount } from './dtype.ts';
import { type PyDict, type PyObject, PyOrderedDict, PyTuple, type PyValue } from './python-value.ts';
import { type TensorToWrite, tensorToWrite } from './torch-file-writer.ts';

/** A tensor whose elements can be had, range by range, wherever they are. */
export interface TensorContent extends PyObject {
  readonly kind: 'tensor-content';
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** Elements [first, first + count) in row-major order, little-endian. */
  read(first: number, count: number): ByteChunks;
}

export const isTensorContent = (value: PyValue | undefined): value is TensorContent =>
  value !== null && typeof value === 'object' && (value as PyObject).kind === 'tensor-content';

/** The state of an optimizer by parameter name. */
export interface OptimizerContent {
  /** Name → part (step, exp_avg, …) → a tensor or a number. */
  readonly state: ReadonlyMap<string, ReadonlyMap<string, PyValue>>;
  /** Options as torch names them, `params` (a list of names) among them. */
  readonly groups: readonly PyDict[];
}

/** What a checkpoint holds, independent of how it is stored. */
export interface CheckpointContent {
  /** In the model's order. One object under two names is one tensor that both share. */
  readonly model: ReadonlyMap<string, TensorContent>;
  readonly optimizer: OptimizerContent | null;
  /** The other keys: iter, config, samples. */
  readonly rest: PyDict;
}

/** Keys of a checkpoint of ours and Fabric's examples. */
export const MODEL_KEY = 'model';
export const OPTIMIZER_KEY = 'optimizer';

/** The content as the one dict that a full checkpoint is. */
export function contentTree({ model, optimizer, rest }: CheckpointContent): PyDict {
  const tree: PyDict = new Map();
  const written = new Map<TensorContent, TensorToWrite>();
  tree.set(MODEL_KEY, treeToWrite(new PyOrderedDict(model), written));
  if (optimizer) {
    const state = new Map([...optimizer.state].map(([name, parts]) => [name, new Map(parts)]));
    const content: PyDict = new Map<PyValue, PyValue>([
      ['state', state],
      ['param_groups', [...optimizer.groups]],
    ]);
    tree.set(OPTIMIZER_KEY, treeToWrite(content, written));
  }
  for (const [key, value] of rest) {
    if (tree.has(key)) throw new StudioError('internal', `A checkpoint already has a key ${key}.`);
    tree.set(key, treeToWrite(value, written));
  }
  return tree;
}

/** The same tree with each tensor as one to be written; a tensor met twice stays one. */
export function treeToWrite(value: PyValue, written: Map<TensorContent, TensorToWrite> = new Map()): PyValue {
  if (isTensorContent(value)) {
    const known = written.get(value);
    const elements = elementCount(value.shape);
    const tensor = known ?? tensorToWrite(value.dtype, value.shape, () => value.read(0, elements));
    written.set(value, tensor);
    return tensor;
  }
  if (value instanceof Map) {
    const entries = [...value].map(([key, item]): [PyValue, PyValue] => [key, treeToWrite(item, written)]);
    return value instanceof PyOrderedDict ? new PyOrderedDict(entries) : new Map(entries);
  }
  if (value instanceof PyTuple) return new PyTuple(value.items.map((item) => treeToWrite(item, written)));
  if (Array.isArray(value)) return value.map((item) => treeToWrite(item, written));
  return value;
}
