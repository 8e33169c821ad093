import { PickleArgumentError, type PickleGlobal, type PickleGlobals } from './pickle-reader.ts';
import { type PyObject, PyTuple, type PyValue } from './python-value.ts';
import { torchGlobals } from './torch-globals.ts';

/** An instance of a class that a `.metadata` file may name: what it was made with and what it was filled with. */
export interface DcpInstance extends PyObject {
  readonly kind: 'dcp-instance';
  /** Without its module, which has moved between versions of torch. */
  readonly className: string;
  readonly args: readonly PyValue[];
  state: PyValue | undefined;
}

/** The same value if it is an instance of that class. */
export function asInstance(value: PyValue | undefined, className: string): DcpInstance | undefined {
  const instance = value as DcpInstance | null | undefined;
  const fits = typeof instance === 'object' && instance?.kind === 'dcp-instance' && instance.className === className;
  return fits ? instance : undefined;
}

function instancesOf(className: string, how: 'create' | 'call' | 'both'): PickleGlobal {
  const make = (args: readonly PyValue[]): DcpInstance => ({ kind: 'dcp-instance', className, args, state: undefined });
  return {
    ...(how === 'call' ? {} : { create: make }),
    ...(how === 'create' ? {} : { call: make }),
    build: (instance, state) => {
      const made = instance as DcpInstance;
      if (made.state !== undefined) throw new PickleArgumentError(`a second state of one ${className}`);
      made.state = state;
    },
  };
}

/** Where a checkpoint was once saved. Python 3.13 and its predecessors call the class differently. */
const path: PickleGlobal = {
  call: (parts) => {
    const words = parts.filter((part): part is string => typeof part === 'string');
    if (words.length !== parts.length) throw new PickleArgumentError('a path whose parts are not text');
    return words.join('/').replace(/^\/\//, '/');
  },
};

const layout: PickleGlobal = {
  call: ([name]) => {
    if (name !== 'torch.strided') throw new PickleArgumentError(`a layout that is not torch.strided`);
    return name;
  },
};

const METADATA = 'torch.distributed.checkpoint.metadata';
const OLD_METADATA = 'torch.distributed._shard.sharded_tensor.metadata';

const GLOBALS: ReadonlyMap<string, PickleGlobal> = new Map<string, PickleGlobal>([
  ...[
    'Metadata',
    'TensorStorageMetadata',
    'BytesStorageMetadata',
    'ChunkStorageMetadata',
    'MetadataIndex',
    'StorageMeta',
  ].map((name): [string, PickleGlobal] => [`${METADATA}.${name}`, instancesOf(name, 'create')]),
  ['torch.distributed.checkpoint.filesystem._StorageInfo', instancesOf('_StorageInfo', 'create')],
  [`${METADATA}.TensorProperties`, instancesOf('TensorProperties', 'both')],
  [`${METADATA}._MEM_FORMAT_ENCODING`, instancesOf('MemoryFormat', 'call')],
  // Up to torch 2.3.
  [`${OLD_METADATA}.TensorProperties`, instancesOf('TensorProperties', 'both')],
  [`${OLD_METADATA}.MEM_FORMAT_ENCODING`, instancesOf('MemoryFormat', 'call')],
  ['torch.serialization._get_layout', layout],
  ['pathlib.PosixPath', path],
  ['pathlib.WindowsPath', path],
  ['pathlib._local.PosixPath', path],
  ['pathlib._local.WindowsPath', path],
]);

/** What the `.metadata` of a sharded checkpoint may name, in every version of torch that has written one. */
export const dcpGlobals: PickleGlobals = (module, name) => {
  const known = GLOBALS.get(`${module}.${name}`);
  if (known || module !== 'torch') return known;
  const entry = torchGlobals(module, name);
  const isDType = (entry?.value as PyObject | undefined)?.kind === 'dtype';
  return name === 'Size' || isDType ? entry : undefined;
};

/** A field of an instance, or undefined. */
export function fieldOf(instance: DcpInstance, name: string): PyValue | undefined {
  return instance.state instanceof Map ? instance.state.get(name) : undefined;
}

/** What TensorProperties was given, by position: dtype, layout, requires_grad, memory format, pin_memory. */
export function propertiesOf(instance: DcpInstance): readonly PyValue[] {
  return instance.state instanceof PyTuple ? instance.state.items : instance.args;
}
