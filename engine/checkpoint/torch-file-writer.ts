import type { ByteChunks, ByteSink } from './byte-source.ts';
import { DTYPES, type DType, dtypeBytes, elementCount } from './dtype.ts';
import { OPCODE } from './pickle-opcodes.ts';
import { PickleWriter } from './pickle-writer.ts';
import { type PyObject, PyOrderedDict, PyTuple, type PyValue } from './python-value.ts';
import { contiguousStride } from './tensor-layout.ts';
import { type ZipRecord, ZipWriter, zipBytes } from './zip-writer.ts';

/** A tensor to be written: contiguous, little-endian. The same object used twice becomes one storage that two tensors share. */
export interface TensorToWrite extends PyObject {
  readonly kind: 'tensor-to-write';
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** Asked for once, when the file has come to it; together exactly as many bytes as dtype and shape say. */
  readonly chunks: () => ByteChunks;
}

export function tensorToWrite(dtype: DType, shape: readonly number[], chunks: () => ByteChunks): TensorToWrite {
  return { kind: 'tensor-to-write', dtype, shape, chunks };
}

/** torch's name for a file that was saved to a stream. */
const PREFIX = 'archive';

interface Plan {
  readonly head: readonly SmallRecord[];
  /** In the order in which the tree names them. */
  readonly tensors: readonly { record: ZipRecord; tensor: TensorToWrite }[];
  readonly tail: readonly SmallRecord[];
}

interface SmallRecord extends ZipRecord {
  readonly content: Uint8Array;
}

/** The exact size in bytes of the file that `writeTorchFile` makes of this tree. No tensor is asked for. */
export function torchFileBytes(value: PyValue): number {
  const { head, tensors, tail } = planFile(value);
  return zipBytes([...head, ...tensors.map(({ record }) => record), ...tail]);
}

/**
 * Writes a tree of Python values with tensors in it as a file that torch.load reads (weights_only and mmap included).
 * Tensors are pulled one after the other, in the order of the tree, and never kept. Returns the size of the file.
 */
export async function writeTorchFile(value: PyValue, sink: ByteSink): Promise<number> {
  const { head, tensors, tail } = planFile(value);
  const zip = new ZipWriter(sink);
  for (const record of head) await zip.record(record, [record.content]);
  for (const { record, tensor } of tensors) await zip.record(record, tensor.chunks());
  for (const record of tail) await zip.record(record, [record.content]);
  return zip.finish();
}

function planFile(value: PyValue): Plan {
  const keys = new Map<TensorToWrite, string>();
  const writer = new PickleWriter((object, pickle) => writeTensor(object as TensorToWrite, pickle, keys));
  writer.value(value);
  return {
    // Without .format_version torch reads each record's place from its header instead of computing it from its own layout.
    head: [smallRecord('data.pkl', writer.finish()), smallRecord('byteorder', 'little')],
    tensors: [...keys].map(([tensor, key]) => ({
      record: { name: `${PREFIX}/data/${key}`, bytes: elementCount(tensor.shape) * dtypeBytes(tensor.dtype) },
      tensor,
    })),
    tail: [smallRecord('version', '3\n')],
  };
}

function smallRecord(name: string, content: Uint8Array | string): SmallRecord {
  const bytes = typeof content === 'string' ? new TextEncoder().encode(content) : content;
  return { name: `${PREFIX}/${name}`, bytes: bytes.length, content: bytes };
}

/** torch._utils._rebuild_tensor_v2(storage, 0, size, stride, False, OrderedDict()); v3 for types without a storage class. */
function writeTensor(tensor: TensorToWrite, pickle: PickleWriter, keys: Map<TensorToWrite, string>): void {
  const { dtype, shape } = tensor;
  const storageClass = DTYPES[dtype].storage;
  const key = keys.get(tensor) ?? String(keys.size);
  keys.set(tensor, key);
  const elements = elementCount(shape);

  pickle.global('torch._utils', storageClass ? '_rebuild_tensor_v2' : '_rebuild_tensor_v3');
  pickle.tupleOf(storageClass ? 6 : 7, () => {
    pickle.persistentId(() =>
      pickle.tupleOf(5, () => {
        pickle.value('storage');
        if (storageClass) pickle.global('torch', storageClass);
        else pickle.global('torch.storage', 'UntypedStorage');
        pickle.value(key);
        // Wherever the tensor lived: a file that says "cuda" does not load on a machine without one.
        pickle.value('cpu');
        pickle.value(storageClass ? elements : elements * dtypeBytes(dtype));
      }),
    );
    pickle.value(0);
    pickle.value(new PyTuple(shape));
    pickle.value(new PyTuple(contiguousStride(shape)));
    pickle.value(false);
    pickle.value(new PyOrderedDict());
    if (!storageClass) pickle.global('torch', dtype);
  });
  pickle.op(OPCODE.REDUCE);
}
