import { StudioError } from '../errors.ts';
import type { ByteSource } from './byte-source.ts';
import { type DcpFolder, openDcpFolder, SAVE_ID_KEY } from './dcp-folder.ts';
import type { DcpPath } from './dcp-metadata.ts';
import { readDcpTree } from './dcp-tree.ts';
import { type PyDict, type PyValue, sequenceItems } from './python-value.ts';
import { openSafetensors, readSafetensors, type SafetensorsFile, startsAsSafetensors } from './safetensors.ts';
import { readSafetensorsMetadata } from './safetensors-metadata.ts';
import { asOptimizer, chooseStateDict, findStateDicts, type WeightsOptions } from './state-dicts.ts';
import {
  type StoredCheckpoint,
  type StoredCheckpointTensor,
  type StoredOptimizerTree,
  storedTensor,
  wholePart,
} from './stored-checkpoint.ts';
import { openTorchFile, startsAsZip, type TorchFile } from './torch-file.ts';
import { startsAsLegacyTorch } from './torch-legacy.ts';
import { isData, openTensors, type TensorOpener, tensorOpener } from './torch-tree.ts';

/** What a path turned out to be: one file, or the files of a folder by name. */
export type CheckpointInput =
  | { readonly file: ByteSource }
  | { readonly folder: string; readonly files: ReadonlyMap<string, ByteSource> };

/**
 * Opens a checkpoint of any kind, found by looking at its content. Nothing is executed and no tensor is read. A tensor that
 * the chunks of a folder do not cover is refused here, by name. Errors: 'bad-file' for damage, other content, and none
 * or several models (`expectedNames` chooses); 'refused-global'.
 */
export async function openCheckpoint(input: CheckpointInput, options: WeightsOptions = {}): Promise<StoredCheckpoint> {
  if ('files' in input) return openShardedCheckpoint(await openDcpFolder(input.folder, input.files), options);
  const { file } = input;
  const start = await file.read(0, Math.min(16, file.bytes));
  if (startsAsZip(start) || startsAsLegacyTorch(start)) return openFullCheckpoint(await openTorchFile(file), options);
  if (startsAsSafetensors(start, file.bytes)) return openSafetensorsCheckpoint(await openSafetensors(file));
  throw new StudioError(
    'bad-file',
    `${file.name} is no checkpoint: neither a file of torch.save, nor a .safetensors file, nor a folder of torch's sharded form.`,
    { file: file.name },
  );
}

function openFullCheckpoint(file: TorchFile, options: WeightsOptions): StoredCheckpoint {
  const { source } = file;
  const open = tensorOpener(file);
  const { path: modelPath, stateDict } = chooseStateDict(source, findStateDicts(file.value), options);
  const model = new Map([...stateDict].map(([name, tensor]) => [name, open(tensor, [...modelPath, name])]));
  const optimizers = findOptimizers(file.value, []).map(({ path, value }) => optimizerTree(source, path, value, open));

  const rest: PyDict = new Map();
  const taken = new Set<PyValue>([modelPath[0], ...optimizers.map(({ path }) => path[0])]);
  for (const [key, value] of modelPath.length > 0 && file.value instanceof Map ? file.value : []) {
    if (!taken.has(key) && isData(value)) rest.set(key, openTensors(value, [String(key)], open));
  }
  return { kind: 'full', name: source.name, model, optimizers, rest, verify: file.verify };
}

/** Optimizers of a tree wherever they are, also in a list, as Lightning's Trainer keeps them. */
function findOptimizers(value: PyValue, path: DcpPath): { path: DcpPath; value: PyDict }[] {
  const optimizer = asOptimizer(value);
  if (optimizer) return [{ path, value: optimizer }];
  if (value instanceof Map) return [...value].flatMap(([key, item]) => findOptimizers(item, [...path, String(key)]));
  return (sequenceItems(value) ?? []).flatMap((item, index) => findOptimizers(item, [...path, index]));
}

function optimizerTree(source: ByteSource, path: DcpPath, value: PyDict, open: TensorOpener): StoredOptimizerTree {
  const state = new Map<string | number, ReadonlyMap<string, PyValue>>();
  for (const [id, parts] of value.get('state') as PyDict) {
    if ((typeof id !== 'string' && typeof id !== 'number') || !(parts instanceof Map)) {
      throw new StudioError('bad-file', `${source.name}: the state of ${path.join('.')} is not by name or number.`);
    }
    const read = [...parts].map(([part, item]) => {
      const name = String(part);
      return [name, openTensors(item, [...path, 'state', id, name], open)] as const;
    });
    state.set(id, new Map(read));
  }
  const groups = (value.get('param_groups') as PyValue[]).map((group, index) => {
    if (!(group instanceof Map)) throw new StudioError('bad-file', `${source.name}: a param_group is no dict.`);
    return openTensors(group, [...path, 'param_groups', index], open) as PyDict;
  });
  return { path, state, groups };
}

async function openShardedCheckpoint(folder: DcpFolder, options: WeightsOptions): Promise<StoredCheckpoint> {
  const faults = [...folder.tensors.values()].filter(({ fault }) => fault !== undefined);
  if (faults.length > 0) {
    const list = faults.slice(0, 20).map(({ name, fault }) => `${name}: ${fault}`);
    throw new StudioError('bad-file', `${folder.name} is not whole: ${list.join('; ')}.`, {
      file: folder.name,
      tensors: faults.map(({ name }) => name),
    });
  }
  const { model, optimizers, rest } = await readDcpTree(folder, options);
  if (folder.metaFile) {
    const meta = openTensors(folder.metaFile.value, [], tensorOpener(folder.metaFile));
    for (const [key, value] of meta instanceof Map ? meta : []) if (key !== SAVE_ID_KEY) rest.set(key, value);
  }
  return { kind: 'sharded', name: folder.name, model, optimizers, rest, verify: () => folder.verify() };
}

/** Weights alone. Names that share a tensor, and the keys beside the model, are in the metadata of a file of ours. */
function openSafetensorsCheckpoint(file: SafetensorsFile): StoredCheckpoint {
  const { source, tensors, metadata } = file;
  const model = new Map<string, StoredCheckpointTensor>();
  for (const tensor of tensors.values()) {
    const { name, dtype, shape } = tensor;
    const facts = { name, dtype, shape, parts: [wholePart(source, shape)] };
    model.set(
      name,
      storedTensor(facts, (first, count) => readSafetensors(source, tensor, first, count)),
    );
  }
  const { tied, rest } = readSafetensorsMetadata(metadata);
  for (const [name, owner] of tied) {
    const tensor = model.get(owner);
    if (tensor && !model.has(name)) model.set(name, tensor);
  }
  return { kind: 'safetensors', name: source.name, model, optimizers: [], rest, verify: async () => undefined };
}
