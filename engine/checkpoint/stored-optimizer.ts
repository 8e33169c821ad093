import { StudioError } from '../errors.ts';
import type { OptimizerContent } from './checkpoint-content.ts';
import { dtypeBytes, elementCount } from './dtype.ts';
import { type ReadOptions, readGroupOptions } from './optimizer-options.ts';
import { type PyDict, type PyValue, sequenceItems } from './python-value.ts';
import {
  isStoredTensor,
  readFloats,
  type StoredCheckpoint,
  type StoredCheckpointTensor,
  type StoredOptimizerTree,
} from './stored-checkpoint.ts';

/** One param_group, by the names of the model. */
export interface StoredGroup extends ReadOptions {
  readonly names: readonly string[];
  /** Every option as it stands, `params` as names. */
  readonly stored: PyDict;
}

/** An optimizer of a checkpoint, by the names of the model in it. */
export class StoredOptimizer {
  constructor(
    private readonly checkpoint: StoredCheckpoint,
    /** How it is called in the checkpoint: the user's key. */
    readonly key: string,
    readonly groups: readonly StoredGroup[],
    private readonly state: ReadonlyMap<string, ReadonlyMap<string, PyValue>>,
  ) {}

  /** All of it, to be written again. */
  get content(): OptimizerContent {
    return { state: this.state, groups: this.groups.map(({ stored }) => stored) };
  }

  /** Names of the parameters that have state. */
  get names(): string[] {
    return [...this.state.keys()];
  }

  /** The parts of a parameter's state by torch's names; none where it has no state. */
  parts(name: string): string[] {
    return [...(this.state.get(name)?.keys() ?? [])];
  }

  /**
   * Elements [first, first + count) of a part of a parameter's state as float32; nothing else is read. 'bad-data' names the
   * parameter whose part is missing or of another shape than the parameter.
   */
  async readState(name: string, part: string, first: number, count: number): Promise<Float32Array<ArrayBuffer>> {
    const tensor = this.part(name, part);
    if (!isStoredTensor(tensor)) throw this.missing(name, part);
    const shape = this.checkpoint.model.get(name)?.shape ?? [];
    if (tensor.shape.join() !== shape.join()) {
      throw new StudioError(
        'bad-data',
        `${this.checkpoint.name}: ${part} of ${name} has shape [${tensor.shape}] and its parameter [${shape}].`,
        { name, part },
      );
    }
    return readFloats(this.checkpoint, tensor, first, count);
  }

  /** Adam's t of a parameter, or null for an optimizer without one. torch keeps it as a tensor, and as an int before 1.12. */
  async step(name: string): Promise<number | null> {
    const value = this.part(name, 'step');
    if (value === undefined) return null;
    const step = isStoredTensor(value) ? await readScalar(this.checkpoint, value) : value;
    if (typeof step === 'number' && Number.isSafeInteger(step) && step >= 0) return step;
    throw new StudioError('bad-data', `${this.checkpoint.name}: the step of ${name} is no count.`, { name });
  }

  private part(name: string, part: string): PyValue | undefined {
    return this.state.get(name)?.get(part);
  }

  private missing(name: string, part: string): StudioError {
    return new StudioError(
      'bad-data',
      `${this.checkpoint.name}: the state of ${name} has no ${part}. Load the weights alone, or a checkpoint of the same optimizer.`,
      { name, part },
    );
  }
}

export interface OptimizerOptions {
  /**
   * The names of the parameters in each param_group of the run that loads. Needed only where a checkpoint numbers the
   * parameters of several groups, or of some of the model: numbers count through the groups.
   */
  readonly groupNames?: readonly (readonly string[])[];
}

/**
 * The one optimizer of a checkpoint, or null if it has none. State may be keyed by name or by number. Errors: 'bad-file' for
 * several optimizers, a group without params, numbers that cannot be told, or state of a parameter that the model lacks.
 */
export async function openOptimizer(
  checkpoint: StoredCheckpoint,
  options: OptimizerOptions = {},
): Promise<StoredOptimizer | null> {
  const { optimizers, name } = checkpoint;
  if (optimizers.length === 0) return null;
  const keys = optimizers.map(({ path }) => path.join('.'));
  if (optimizers.length > 1) {
    throw new StudioError('bad-file', `${name} holds ${optimizers.length} optimizers (${keys}); a run has one.`, {
      file: name,
      keys,
    });
  }
  const [tree] = optimizers;
  const members = tree.groups.map((group) => membersOf(name, group));
  const nameOf = namingOf(checkpoint, members, options);
  const groups: StoredGroup[] = [];
  for (const [index, group] of tree.groups.entries()) {
    const names = members[index].map(nameOf);
    const stored = (await readTensorOptions(checkpoint, group)).set('params', names);
    groups.push({ names, stored, ...readGroupOptions(stored) });
  }
  return new StoredOptimizer(checkpoint, keys[0], groups, stateByName(checkpoint, tree, nameOf));
}

type NameOf = (id: PyValue) => string;

function stateByName(checkpoint: StoredCheckpoint, tree: StoredOptimizerTree, nameOf: NameOf) {
  const state = new Map<string, ReadonlyMap<string, PyValue>>();
  for (const [id, parts] of tree.state) {
    const parameter = nameOf(id);
    if (!checkpoint.model.has(parameter)) {
      throw new StudioError(
        'bad-file',
        `${checkpoint.name}: its optimizer has state for ${parameter}, which its model does not have.`,
        { file: checkpoint.name, name: parameter },
      );
    }
    state.set(parameter, parts);
  }
  return state;
}

function membersOf(file: string, group: PyDict): readonly PyValue[] {
  const members = sequenceItems(group.get('params'));
  if (!members) throw new StudioError('bad-file', `${file}: a param_group of its optimizer has no params.`, { file });
  return members;
}

/** Names stay; numbers count through the groups, which for one group is the model's order, tied names counted once. */
function namingOf(
  { name: file, model }: StoredCheckpoint,
  members: readonly (readonly PyValue[])[],
  { groupNames }: OptimizerOptions,
): NameOf {
  const total = members.reduce((sum, group) => sum + group.length, 0);
  const seen = new Set<StoredCheckpointTensor>();
  const own: string[] = [];
  for (const [name, tensor] of model) {
    if (!seen.has(tensor)) own.push(name);
    seen.add(tensor);
  }
  const given = groupNames?.map((names) => names.length).join() === members.map((group) => group.length).join();
  const names = given ? groupNames?.flat() : members.length === 1 && total === own.length ? own : undefined;
  return (id) => {
    if (typeof id === 'string') return id;
    const name = typeof id === 'number' ? names?.[id] : undefined;
    if (name !== undefined) return name;
    throw new StudioError(
      'bad-file',
      `${file}: its optimizer numbers ${total} parameters in ${members.length} group(s) of ${members.map((group) => group.length)}, ` +
        `which cannot be told from the ${own.length} names of its model. Set optimizer.groups as they were when it was saved.`,
      { file, total, groups: members.map((group) => group.length), names: own.length },
    );
  };
}

/** A learning rate may be a tensor (torch's capturable optimizers); it becomes a number. */
async function readTensorOptions(checkpoint: StoredCheckpoint, group: PyDict): Promise<PyDict> {
  const plain: PyDict = new Map();
  for (const [name, value] of group) {
    plain.set(name, isStoredTensor(value) ? await readScalar(checkpoint, value) : value);
  }
  return plain;
}

/** The value of a tensor of one element; null for more than one, or another type than a number's. */
async function readScalar(checkpoint: StoredCheckpoint, tensor: StoredCheckpointTensor): Promise<number | null> {
  if (elementCount(tensor.shape) !== 1) return null;
  if (tensor.dtype !== 'int64' && tensor.dtype !== 'float64') return (await readFloats(checkpoint, tensor, 0, 1))[0];
  const view = new DataView((await tensor.readBytes(0, 1)).buffer, 0, dtypeBytes(tensor.dtype));
  return tensor.dtype === 'int64' ? Number(view.getBigInt64(0, true)) : view.getFloat64(0, true);
}
