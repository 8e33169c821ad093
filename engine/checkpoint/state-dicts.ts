import { StudioError } from '../errors.ts';
import type { ByteSource } from './byte-source.ts';
import type { PyDict, PyValue } from './python-value.ts';
import { isTensor, type TorchTensor } from './torch-globals.ts';

export interface WeightsOptions {
  /** Names the model has, to choose by where a file holds several state dicts. */
  readonly expectedNames?: Iterable<string>;
}

export interface FoundStateDict {
  readonly path: readonly string[];
  readonly stateDict: ReadonlyMap<string, TorchTensor>;
}

/** Every mapping of names to tensors in a tree, the top first. Optimizers, known by `state` and `param_groups`, are left aside. */
export function findStateDicts(value: PyValue, path: readonly string[] = []): FoundStateDict[] {
  if (!(value instanceof Map) || asOptimizer(value)) return [];
  const stateDict = asStateDict(value);
  if (stateDict) return [{ path, stateDict }];
  return [...value].flatMap(([key, inner]) => findStateDicts(inner, [...path, String(key)]));
}

/** The same value if it is the state of an optimizer, whatever its key. */
export function asOptimizer(value: PyValue): PyDict | undefined {
  const all = value instanceof Map && value.get('state') instanceof Map && Array.isArray(value.get('param_groups'));
  return all ? value : undefined;
}

/** The same mapping if it is one of names to tensors, and nothing else. */
function asStateDict(value: PyDict): ReadonlyMap<string, TorchTensor> | undefined {
  const all = value.size > 0 && [...value].every(([key, item]) => typeof key === 'string' && isTensor(item));
  return all ? (value as ReadonlyMap<unknown, unknown> as ReadonlyMap<string, TorchTensor>) : undefined;
}

/** The one that is meant, or 'bad-file' if there is none or the names do not tell. */
export function chooseStateDict(source: ByteSource, found: FoundStateDict[], options: WeightsOptions): FoundStateDict {
  if (found.length === 1) return found[0];
  const names = [...(options.expectedNames ?? [])];
  const fitting = names.length === 0 ? [] : found.filter(({ stateDict }) => names.every((name) => stateDict.has(name)));
  if (fitting.length === 1) return fitting[0];
  const where = found.map(({ path }) => path.join('.')).join(', ');
  const message =
    found.length === 0
      ? `${source.name} holds no state dict: no mapping from names to tensors. Save one with torch.save(model.state_dict(), …).`
      : `${source.name} holds several state dicts (${where}), and the model's names do not tell which one is meant. Save one of them alone.`;
  throw new StudioError('bad-file', message, { file: source.name, found: found.map(({ path }) => path) });
}
