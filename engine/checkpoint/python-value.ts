/**
 * What Python values become here. None is null, int is number (bigint above 2^53), float is number, str is string,
 * bytes is Uint8Array, list is an array, dict is a Map in its own order, set is a Set. Classes of the allow-list
 * become plain objects with a `kind`.
 */
export type PyValue =
  | null
  | boolean
  | number
  | bigint
  | string
  | Uint8Array<ArrayBuffer>
  | PyValue[]
  | PyTuple
  | PyDict
  | Set<PyValue>
  | PyObject;

export type PyDict = Map<PyValue, PyValue>;

/** Data of a class: the allow-list that made it says which. */
export interface PyObject {
  readonly kind: string;
}

/** A tuple. Not an array, because a list is one and Python tells them apart. */
export class PyTuple {
  constructor(readonly items: readonly PyValue[]) {}
}

/** collections.OrderedDict. */
export class PyOrderedDict extends Map<PyValue, PyValue> {}

export const tuple = (...items: PyValue[]): PyTuple => new PyTuple(items);

/** The items of a list or tuple, or undefined. */
export function sequenceItems(value: PyValue | undefined): readonly PyValue[] | undefined {
  if (value instanceof PyTuple) return value.items;
  return Array.isArray(value) ? value : undefined;
}

/** Values that JSON has: what a run's config is made of. */
export type PlainValue =
  | null
  | boolean
  | number
  | string
  | readonly PlainValue[]
  | { readonly [key: string]: PlainValue };

/** Plain data as Python values: objects become dicts, arrays lists. An undefined field is left out. */
export function fromPlain(value: PlainValue): PyValue {
  if (Array.isArray(value)) return value.map(fromPlain);
  if (value !== null && typeof value === 'object') {
    const entries = Object.entries(value).filter(([, item]) => item !== undefined);
    return new Map(entries.map(([key, item]) => [key, fromPlain(item)]));
  }
  return value as PyValue;
}

/** Python values as plain data: tuples and sets become arrays, dict keys text; undefined for what JSON cannot say. */
export function toPlain(value: PyValue): PlainValue | undefined {
  if (value === null || typeof value === 'boolean' || typeof value === 'number' || typeof value === 'string')
    return value;
  if (typeof value === 'bigint') return value.toString();
  if (value instanceof Map) {
    const entries: [string, PlainValue][] = [];
    for (const [key, item] of value) {
      const plain = toPlain(item);
      if (plain !== undefined) entries.push([String(key), plain]);
    }
    return Object.fromEntries(entries);
  }
  const items = value instanceof Set ? [...value] : sequenceItems(value);
  return items?.map((item) => toPlain(item) ?? null);
}
