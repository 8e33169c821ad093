import { StudioError } from '../errors.ts';
import { type CheckpointContent, isTensorContent } from './checkpoint-content.ts';
import { fromPlain, type PlainValue, type PyDict, type PyValue, toPlain } from './python-value.ts';

/** Under this key: which names share the tensor of another, as JSON. */
const TIED_KEY = 'tied';

/**
 * What a safetensors file of ours says beside its tensors: each other key of the checkpoint as JSON, and the names that the
 * format cannot hold because their tensor is there already. Keys whose value is no plain data are in `dropped`.
 */
export function safetensorsMetadata({ model, rest }: CheckpointContent): {
  readonly metadata: Readonly<Record<string, string>>;
  readonly dropped: readonly string[];
} {
  const owners = new Map<PyValue, string>();
  const tied: Record<string, string> = Object.create(null);
  for (const [name, tensor] of model) {
    const owner = owners.get(tensor);
    if (owner === undefined) owners.set(tensor, name);
    else tied[name] = owner;
  }
  const metadata: [string, string][] = [];
  const dropped: string[] = [];
  for (const [key, value] of rest) {
    const plain = isTensorContent(value) ? undefined : toPlain(value);
    if (plain === undefined || key === TIED_KEY) dropped.push(String(key));
    else metadata.push([String(key), JSON.stringify(plain)]);
  }
  if (Object.keys(tied).length > 0) metadata.push([TIED_KEY, JSON.stringify(tied)]);
  return { metadata: Object.fromEntries(metadata), dropped };
}

/** The reverse, for any file: text that is not JSON stays text. */
export function readSafetensorsMetadata(metadata: Readonly<Record<string, string>>): {
  readonly tied: ReadonlyMap<string, string>;
  readonly rest: PyDict;
} {
  const rest: PyDict = new Map();
  for (const [key, text] of Object.entries(metadata)) rest.set(key, parse(text));
  const tied = rest.get(TIED_KEY);
  if (!(tied instanceof Map)) return { tied: new Map(), rest };
  rest.delete(TIED_KEY);
  for (const [name, owner] of tied) {
    if (typeof name !== 'string' || typeof owner !== 'string')
      throw new StudioError('bad-file', `A safetensors file's metadata calls ${String(name)} tied to no name.`);
  }
  return { tied: tied as ReadonlyMap<string, string>, rest };
}

/** Config files are not deep; what is deeper is not ours. */
const MAX_JSON_DEPTH = 64;

function parse(text: string): PyValue {
  try {
    const value = JSON.parse(text) as PlainValue;
    return depthOf(value, MAX_JSON_DEPTH) > MAX_JSON_DEPTH ? text : fromPlain(value);
  } catch (error) {
    if (error instanceof SyntaxError) return text;
    throw error;
  }
}

/** How many containers are inside each other, counted no further than `most` + 1. */
function depthOf(value: PlainValue, most: number): number {
  if (value === null || typeof value !== 'object') return 0;
  if (most === 0) return 1;
  return 1 + Object.values(value).reduce((deepest: number, item) => Math.max(deepest, depthOf(item, most - 1)), 0);
}
