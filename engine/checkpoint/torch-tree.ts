import type { DcpPath } from './dcp-metadata.ts';
import { type PyObject, PyOrderedDict, PyTuple, type PyValue, sequenceItems } from './python-value.ts';
import { type StoredCheckpointTensor, storedTensor, wholePart } from './stored-checkpoint.ts';
import type { TorchFile } from './torch-file.ts';
import { isTensor, type TorchTensor } from './torch-globals.ts';

/** Gives a tensor of a torch file as one that can be read on its own. */
export type TensorOpener = (tensor: TorchTensor, path: DcpPath) => StoredCheckpointTensor;

/** The opener of a file. Tensors that are the same view of the same elements become one. */
export function tensorOpener(file: TorchFile): TensorOpener {
  const known = new Map<string, StoredCheckpointTensor>();
  return (tensor, path) => {
    const { storage, storageOffset, dtype, shape, stride } = tensor;
    const key = `${storage.key} ${storageOffset} ${dtype} ${shape} ${stride}`;
    const shared = shape.includes(0) ? undefined : known.get(key);
    if (shared) return shared;
    const facts = { name: path.join('.'), dtype, shape, parts: [wholePart(file.source, shape)] };
    const stored = storedTensor(facts, (first, count) => file.readElements(tensor, first, count));
    known.set(key, stored);
    return stored;
  };
}

/** The same tree with its tensors opened. What is no plain data (a dtype, a device) is left out. */
export function openTensors(value: PyValue, path: DcpPath, open: TensorOpener): PyValue {
  if (isTensor(value)) return open(value, path);
  if (value instanceof Map) {
    const entries: [PyValue, PyValue][] = [];
    for (const [key, item] of value) {
      if (isData(key) && isData(item)) entries.push([key, openTensors(item, [...path, String(key)], open)]);
    }
    return value instanceof PyOrderedDict ? new PyOrderedDict(entries) : new Map(entries);
  }
  const items = sequenceItems(value)
    ?.filter(isData)
    .map((item, index) => openTensors(item, [...path, index], open));
  if (!items) return value;
  return value instanceof PyTuple ? new PyTuple(items) : items;
}

/** Whether a checkpoint of ours can say it. */
export function isData(value: PyValue): boolean {
  return isTensor(value) || typeof (value as PyObject | null)?.kind !== 'string';
}
