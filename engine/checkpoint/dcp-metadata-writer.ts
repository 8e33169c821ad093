import type { DcpChunk, DcpMetadata, DcpTensor } from './dcp-metadata.ts';
import { OPCODE } from './pickle-opcodes.ts';
import { PickleWriter } from './pickle-writer.ts';
import { type PyObject, type PyValue, tuple } from './python-value.ts';

const METADATA_MODULE = 'torch.distributed.checkpoint.metadata';

/** An instance that pickle makes with `cls.__new__(cls)` and fills with a dict of fields. */
interface InstanceToWrite extends PyObject {
  readonly kind: 'instance-to-write';
  readonly module: string;
  readonly name: string;
  readonly fields: Readonly<Record<string, PyValue>>;
}

/** The result of calling a class. */
interface CallToWrite extends PyObject {
  readonly kind: 'call-to-write';
  readonly module: string;
  readonly name: string;
  readonly args: readonly PyValue[];
}

/** A module-level name: a dtype. */
interface GlobalToWrite extends PyObject {
  readonly kind: 'global-to-write';
  readonly module: string;
  readonly name: string;
}

type ObjectToWrite = InstanceToWrite | CallToWrite | GlobalToWrite;

/**
 * `.metadata` as torch 2.2 and later read it, in pickle protocol 2. It has no storage_meta, whose class 2.2 and 2.3 lack and
 * which no version needs, and calls TensorProperties by its dtype alone, which means the same in every version, while its
 * pickled state does not. Items without a chunk, paths and places are written as given.
 */
export function writeDcpMetadata(metadata: Omit<DcpMetadata, 'checkpointId'>): Uint8Array<ArrayBuffer> {
  const stateDict = new Map<PyValue, PyValue>();
  for (const [name, item] of metadata.items) {
    stateDict.set(name, item.kind === 'tensor' ? tensorMetadata(item) : instance('BytesStorageMetadata', {}));
  }
  const paths = [...metadata.paths].map(([name, path]): [PyValue, PyValue] => [name, tuple(...path)]);
  const writer = new PickleWriter((value, pickle) => writeObject(value as ObjectToWrite, pickle));
  writer.value(
    instance('Metadata', {
      state_dict_metadata: stateDict,
      planner_data: new Map(paths),
      storage_data: new Map(placesOf(metadata)),
    }),
  );
  return writer.finish();
}

function tensorMetadata({ dtype, shape, chunks }: DcpTensor): InstanceToWrite {
  const torchDType: GlobalToWrite = { kind: 'global-to-write', module: 'torch', name: dtype };
  return instance('TensorStorageMetadata', {
    properties: call(METADATA_MODULE, 'TensorProperties', torchDType),
    size: size(shape),
    chunks: chunks.map(({ offsets, sizes }) =>
      instance('ChunkStorageMetadata', { offsets: size(offsets), sizes: size(sizes) }),
    ),
  });
}

function placesOf({ items, places }: Omit<DcpMetadata, 'checkpointId'>): [PyValue, PyValue][] {
  return places.map(({ name, offsets, file, start, bytes }) => {
    const item = items.get(name);
    const index = item?.kind === 'tensor' && offsets ? chunkIndex(item.chunks, offsets) : null;
    return [
      instance('MetadataIndex', { fqn: name, ...(offsets ? { offset: size(offsets) } : {}), index }),
      instance(
        '_StorageInfo',
        { relative_path: file, offset: start, length: bytes },
        'torch.distributed.checkpoint.filesystem',
      ),
    ];
  });
}

/** A hint for torch, which looks there first. */
function chunkIndex(chunks: readonly DcpChunk[], offsets: readonly number[]): number | null {
  const index = chunks.findIndex((chunk) => chunk.offsets.join() === offsets.join());
  return index < 0 ? null : index;
}

const instance = (name: string, fields: Record<string, PyValue>, module = METADATA_MODULE): InstanceToWrite => ({
  kind: 'instance-to-write',
  module,
  name,
  fields,
});

const call = (module: string, name: string, ...args: PyValue[]): CallToWrite => ({
  kind: 'call-to-write',
  module,
  name,
  args,
});

const size = (sizes: readonly number[]): CallToWrite => call('torch', 'Size', tuple(...sizes));

function writeObject(value: ObjectToWrite, writer: PickleWriter): void {
  if (value.kind === 'global-to-write') writer.global(value.module, value.name);
  else if (value.kind === 'call-to-write') writer.reduce(value.module, value.name, value.args);
  else {
    writer.global(value.module, value.name);
    writer.op(OPCODE.EMPTY_TUPLE, OPCODE.NEWOBJ);
    // An instance without fields, such as BytesStorageMetadata, has no state at all.
    if (Object.keys(value.fields).length === 0) return;
    writer.value(new Map<PyValue, PyValue>(Object.entries(value.fields)));
    writer.op(OPCODE.BUILD);
  }
}
