import { StudioError } from '../errors.ts';
import type { DcpFolder, DcpFolderTensor } from './dcp-folder.ts';
import type { DcpPath } from './dcp-metadata.ts';
import { type PyDict, type PyValue, sequenceItems } from './python-value.ts';
import type { WeightsOptions } from './state-dicts.ts';
import {
  isStoredTensor,
  type StoredCheckpointTensor,
  type StoredOptimizerTree,
  storedTensor,
} from './stored-checkpoint.ts';
import { openTensors, tensorOpener } from './torch-tree.ts';

/** What the paths of a sharded folder spell out. */
export interface DcpTree {
  readonly model: ReadonlyMap<string, StoredCheckpointTensor>;
  readonly optimizers: readonly StoredOptimizerTree[];
  readonly rest: PyDict;
}

interface Leaf {
  readonly path: DcpPath;
  readonly value: PyValue;
}

/**
 * Puts the leaves of a folder together again: optimizers are where there are param_groups, the model is the mapping of names
 * to tensors that remains, whatever the keys. Values that are no tensors are read, tensors are not. Errors: 'bad-file'
 * for no model or for several among which `expectedNames` does not choose.
 */
export async function readDcpTree(folder: DcpFolder, options: WeightsOptions): Promise<DcpTree> {
  const leaves: Leaf[] = [];
  const tied = new Map<string, StoredCheckpointTensor>();
  for (const tensor of folder.tensors.values())
    leaves.push({ path: tensor.path, value: openTensor(folder, tensor, tied) });
  for (const { name, path } of folder.values.values()) {
    const file = await folder.openValue(name);
    leaves.push({ path, value: openTensors(file.value, path, tensorOpener(file)) });
  }

  const optimizers = new Map<string, OptimizerBuilder>();
  for (const { path } of leaves) {
    const at = path.indexOf('param_groups');
    const found = at >= 0 && (at === path.length - 1 || typeof path[at + 1] === 'number');
    if (found) optimizers.set(keyOf(path.slice(0, at)), new OptimizerBuilder(folder.name, path.slice(0, at)));
  }
  const others = leaves.filter((leaf) => !takenByOptimizer(leaf, optimizers));
  const { prefix, model } = chooseModel(folder.name, others, options);
  const rest: PyDict = new Map();
  for (const { path, value } of others) {
    if (keyOf(path.slice(0, -1)) !== prefix) rest.set(path.join('.'), value);
  }
  return { model, optimizers: [...optimizers.values()].map((builder) => builder.finish()), rest };
}

const keyOf = (path: DcpPath): string => JSON.stringify(path);

/** Two names whose chunks lie in the same places share one tensor. */
function openTensor(folder: DcpFolder, tensor: DcpFolderTensor, tied: Map<string, StoredCheckpointTensor>) {
  const { name, dtype, shape } = tensor;
  const identity = JSON.stringify([dtype, shape, tensor.parts.map(({ place }) => [place.file, place.start])]);
  const known = tied.get(identity);
  if (known && tensor.parts.length > 0) return known;
  const parts = tensor.parts.map(({ offsets, sizes, place: { file } }) => ({
    file,
    rank: rankOf(file),
    offsets,
    sizes,
  }));
  const opened = storedTensor({ name, dtype, shape, parts }, (first, count) => folder.readElements(name, first, count));
  tied.set(identity, opened);
  return opened;
}

function rankOf(file: string): number | null {
  const rank = /^__(\d{1,9})_\d+\.distcp$/.exec(file)?.[1];
  return rank === undefined ? null : Number(rank);
}

function takenByOptimizer({ path, value }: Leaf, optimizers: ReadonlyMap<string, OptimizerBuilder>): boolean {
  for (let at = path.length - 1; at >= 0; at--) {
    const builder = optimizers.get(keyOf(path.slice(0, at)));
    if (builder?.add(path.slice(at), value)) return true;
  }
  return false;
}

/** Collects the leaves of one optimizer. Up to torch 2.3 a container without tensors is a leaf as a whole. */
class OptimizerBuilder {
  private readonly state = new Map<string | number, Map<string, PyValue>>();
  private readonly groups = new Map<number, PyDict>();

  constructor(
    private readonly file: string,
    private readonly path: DcpPath,
  ) {}

  /** Whether the leaf, its path counted from the optimizer, is of this optimizer. */
  add(path: DcpPath, value: PyValue): boolean {
    const [key, id, part] = path;
    if (key === 'state' && path.length === 1) for (const [name, parts] of this.dict(value)) this.addState(name, parts);
    else if (key === 'state' && path.length === 2) this.addState(id, value);
    else if (key === 'state' && path.length === 3) this.partsOf(id).set(String(part), value);
    else if (key === 'param_groups' && path.length === 1) {
      for (const [index, group] of this.list(value).entries()) this.addGroup(index, group);
    } else if (key === 'param_groups' && path.length === 2) this.addGroup(id, value);
    else if (key === 'param_groups' && path.length === 3) this.groupAt(id).set(part, value);
    else return false;
    return true;
  }

  finish(): StoredOptimizerTree {
    const groups = [...this.groups].toSorted(([a], [b]) => a - b);
    if (groups.some(([index], at) => index !== at)) throw this.bad('a param_group is missing');
    return { path: this.path, state: this.state, groups: groups.map(([, group]) => group) };
  }

  private addState(id: PyValue, parts: PyValue): void {
    for (const [part, value] of this.dict(parts)) this.partsOf(id).set(String(part), value);
  }

  private addGroup(index: PyValue, group: PyValue): void {
    for (const [option, value] of this.dict(group)) this.groupAt(index).set(option, value);
  }

  private partsOf(id: PyValue): Map<string, PyValue> {
    if (typeof id !== 'string' && typeof id !== 'number') throw this.bad('its state is not by name or number');
    const parts = this.state.get(id) ?? new Map<string, PyValue>();
    this.state.set(id, parts);
    return parts;
  }

  private groupAt(index: PyValue): PyDict {
    if (typeof index !== 'number') throw this.bad('its param_groups are no list');
    const group: PyDict = this.groups.get(index) ?? new Map();
    this.groups.set(index, group);
    return group;
  }

  private dict(value: PyValue): PyDict {
    if (!(value instanceof Map)) throw this.bad('a part of it is no dict');
    return value;
  }

  private list(value: PyValue): readonly PyValue[] {
    const items = sequenceItems(value);
    if (!items) throw this.bad('its param_groups are no list');
    return items;
  }

  private bad(what: string): StudioError {
    return new StudioError('bad-file', `${this.file}: of its optimizer ${this.path.join('.')}, ${what}.`, {
      file: this.file,
    });
  }
}

/** The mapping of names to tensors, and to nothing else, that stands under one key. */
function chooseModel(file: string, leaves: readonly Leaf[], options: WeightsOptions) {
  const found = new Map<string, Map<string, StoredCheckpointTensor>>();
  const mixed = new Set<string>();
  for (const { path, value } of leaves) {
    const parent = keyOf(path.slice(0, -1));
    const name = path[path.length - 1];
    if (isStoredTensor(value) && typeof name === 'string')
      found.set(parent, (found.get(parent) ?? new Map()).set(name, value));
    else mixed.add(parent);
    for (let at = 0; at < path.length - 1; at++) mixed.add(keyOf(path.slice(0, at)));
  }
  let choices = [...found].filter(([prefix]) => !mixed.has(prefix));
  const names = [...(options.expectedNames ?? [])];
  if (choices.length > 1 && names.length > 0) {
    choices = choices.filter(([, model]) => names.every((name) => model.has(name)));
  }
  if (choices.length !== 1) {
    throw new StudioError(
      'bad-file',
      `${file} holds ${choices.length === 0 ? 'no model: no mapping from names to tensors' : 'several models'}.`,
      { file, found: choices.map(([prefix]) => JSON.parse(prefix) as unknown) },
    );
  }
  const [[prefix, model]] = choices;
  return { prefix, model };
}
