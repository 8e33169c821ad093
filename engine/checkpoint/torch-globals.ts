import { DTYPES, type DType, dtypeBytes, dtypeOfStorage } from './dtype.ts';
import { PickleArgumentError, type PickleGlobal, type PickleGlobals, PyGlobalReference } from './pickle-reader.ts';
import { type PyObject, PyOrderedDict, PyTuple, type PyValue, sequenceItems } from './python-value.ts';

/** The bytes that one or more tensors share: a record of the file. */
export interface TorchStorage extends PyObject {
  readonly kind: 'storage';
  /** Record name under `data/`. */
  readonly key: string;
  /** null for an untyped storage, whose tensors say it. */
  readonly dtype: DType | null;
  readonly bytes: number;
}

/** A tensor of a torch file: where its elements lie, not yet the elements. Offsets and strides are in elements. */
export interface TorchTensor extends PyObject {
  readonly kind: 'tensor';
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly stride: readonly number[];
  readonly storageOffset: number;
  readonly storage: TorchStorage;
  readonly requiresGrad: boolean;
}

export interface TorchDType extends PyObject {
  readonly kind: 'dtype';
  readonly dtype: DType;
}

export interface TorchDevice extends PyObject {
  readonly kind: 'device';
  readonly device: string;
}

/** torch.Size, a tuple by another name. */
export class TorchSize extends PyTuple {}

interface StorageType extends PyObject {
  readonly kind: 'storage-type';
  readonly dtype: DType | null;
}

function hasKind(value: PyValue | undefined, kind: string): boolean {
  return value !== null && typeof value === 'object' && (value as PyObject).kind === kind;
}

export const isTensor = (value: PyValue | undefined): value is TorchTensor => hasKind(value, 'tensor');
const isStorage = (value: PyValue | undefined): value is TorchStorage => hasKind(value, 'storage');
const isStorageType = (value: PyValue | undefined): value is StorageType => hasKind(value, 'storage-type');
const isDType = (value: PyValue | undefined): value is TorchDType => hasKind(value, 'dtype');

/** What data.pkl of a torch file may name (torch's own weights_only list, as far as checkpoints use it). */
export const torchGlobals: PickleGlobals = (module, name) => {
  const known = GLOBALS.get(`${module}.${name}`);
  if (known || module !== 'torch') return known;
  const dtype = Object.hasOwn(DTYPES, name) ? (name as DType) : undefined;
  if (dtype) return { value: { kind: 'dtype', dtype } as TorchDType };
  const storage = dtypeOfStorage(name);
  return storage ? { value: { kind: 'storage-type', dtype: storage } as StorageType } : undefined;
};

/** ('storage', type, key, location, elements) → the storage. Its location is where it once lay, and is ignored. */
export function torchPersistent(id: PyValue): TorchStorage {
  const [word, type, key, location, elements] = sequenceItems(id) ?? [];
  need(word === 'storage' && isStorageType(type), 'not a storage');
  need(typeof key === 'string' && /^[\w.-]+$/.test(key) && key !== '..', 'a storage key that is no record name');
  need(typeof location === 'string', 'no location');
  return {
    kind: 'storage',
    key,
    dtype: type.dtype,
    bytes: count(elements) * (type.dtype ? dtypeBytes(type.dtype) : 1),
  };
}

const rebuildTensor = ([storage, offset, size, stride, requiresGrad]: readonly PyValue[]): TorchTensor => {
  need(isStorage(storage) && storage.dtype !== null, 'no typed storage');
  return makeTensor(storage, storage.dtype, offset, size, stride, requiresGrad);
};

const rebuildTensorV3 = ([storage, offset, size, stride, requiresGrad, , dtype]: readonly PyValue[]): TorchTensor => {
  need(isStorage(storage) && isDType(dtype), 'no storage and dtype');
  return makeTensor(storage, dtype.dtype, offset, size, stride, requiresGrad);
};

function makeTensor(
  storage: TorchStorage,
  dtype: DType,
  offset: PyValue | undefined,
  size: PyValue | undefined,
  strides: PyValue | undefined,
  requiresGrad: PyValue | undefined,
): TorchTensor {
  const shape = counts(size);
  const stride = counts(strides);
  need(shape.length === stride.length, 'size and stride of different lengths');
  return {
    kind: 'tensor',
    dtype,
    shape,
    stride,
    storageOffset: count(offset),
    storage,
    requiresGrad: requiresGrad === true,
  };
}

/** As many as torch itself handles. */
const MAX_DIMENSIONS = 64;

const rebuildParameter = ([data, requiresGrad]: readonly PyValue[]): TorchTensor => {
  need(isTensor(data), 'no tensor');
  return { ...data, requiresGrad: requiresGrad === true };
};

/** FSDP leaves an attribute on every tensor of a full checkpoint, which torch then saves as (function, class, args, attributes). */
const rebuildFromType = ([rebuild, type, args]: readonly PyValue[]): PyValue => {
  need(rebuild instanceof PyGlobalReference && rebuild.entry.call !== undefined, 'no function');
  need(type instanceof PyGlobalReference && TENSOR_CLASSES.has(`${type.module}.${type.name}`), 'no tensor class');
  need(args instanceof PyTuple && rebuild.entry.call !== rebuildFromType, 'no arguments of a tensor');
  const value = rebuild.entry.call(args.items);
  need(isTensor(value), 'something that is no tensor');
  return value;
};

const TENSOR_CLASSES = new Set(['torch.Tensor', 'torch.nn.parameter.Parameter']);

const makeSet: PickleGlobal = { call: ([items]) => new Set(items === undefined ? [] : list(items).map(hashable)) };

const makeBytes: PickleGlobal = {
  call: ([data]) => {
    if (data === undefined) return new Uint8Array(0);
    need(data instanceof Uint8Array, 'no bytes');
    return data;
  },
};

/** Protocol 2 writes bytes as text in latin1. */
const encodeLatin1: PickleGlobal = {
  call: ([text, encoding]) => {
    need(typeof text === 'string' && (encoding === 'latin1' || encoding === 'latin-1'), 'no latin1 text');
    const out = new Uint8Array(text.length);
    for (let i = 0; i < out.length; i++) {
      const code = text.charCodeAt(i);
      need(code < 256, 'text beyond latin1');
      out[i] = code;
    }
    return out;
  },
};

const makeOrderedDict: PickleGlobal = {
  call: ([entries]) => {
    const dict = new PyOrderedDict();
    for (const entry of entries === undefined ? [] : list(entries)) {
      const [key, value] = list(entry);
      need(key !== undefined && value !== undefined, 'an item that is no pair');
      dict.set(hashable(key), value);
    }
    return dict;
  },
};

const deviceOf = (device: string): TorchDevice => ({ kind: 'device', device });

const makeDevice: PickleGlobal = {
  call: ([type, index]) => {
    need(typeof type === 'string', 'no device name');
    return deviceOf(index === undefined ? type : `${type}:${count(index)}`);
  },
};

const GLOBALS: ReadonlyMap<string, PickleGlobal> = new Map<string, PickleGlobal>([
  ['collections.OrderedDict', makeOrderedDict],
  ['torch.storage.UntypedStorage', { value: { kind: 'storage-type', dtype: null } as StorageType }],
  ['torch.Size', { call: ([sizes]) => new TorchSize(sizes === undefined ? [] : counts(sizes)) }],
  ['torch.device', makeDevice],
  ['torch.Tensor', {}],
  ['torch.nn.parameter.Parameter', {}],
  ['torch._utils._rebuild_tensor', { call: rebuildTensor }],
  ['torch._utils._rebuild_tensor_v2', { call: rebuildTensor }],
  ['torch._utils._rebuild_tensor_v3', { call: rebuildTensorV3 }],
  ['torch._utils._rebuild_parameter', { call: rebuildParameter }],
  ['torch._utils._rebuild_parameter_with_state', { call: rebuildParameter }],
  ['torch._tensor._rebuild_from_type_v2', { call: rebuildFromType }],
  ['_codecs.encode', encodeLatin1],
  ['builtins.set', makeSet],
  ['__builtin__.set', makeSet],
  ['builtins.frozenset', makeSet],
  ['__builtin__.frozenset', makeSet],
  ['builtins.bytearray', makeBytes],
  ['__builtin__.bytearray', makeBytes],
]);

function need(condition: boolean, otherwise: string): asserts condition {
  if (!condition) throw new PickleArgumentError(otherwise);
}

function count(value: PyValue | undefined): number {
  need(
    typeof value === 'number' && Number.isSafeInteger(value) && value >= 0,
    'a count that is no whole number from 0',
  );
  return value;
}

function list(value: PyValue | undefined): readonly PyValue[] {
  const items = sequenceItems(value);
  need(items !== undefined, 'no list');
  return items;
}

function counts(value: PyValue | undefined): number[] {
  const items = list(value);
  need(items.length <= MAX_DIMENSIONS, `more than ${MAX_DIMENSIONS} dimensions`);
  return items.map(count);
}

function hashable(value: PyValue): PyValue {
  need(
    !Array.isArray(value) && !(value instanceof Map) && !(value instanceof Set),
    'a list, dict or set used as a key',
  );
  return value;
}
