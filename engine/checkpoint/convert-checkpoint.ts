import { StudioError } from '../errors.ts';
import type { ByteSink } from './byte-source.ts';
import {
  type CheckpointContent,
  contentTree,
  MODEL_KEY,
  OPTIMIZER_KEY,
  type TensorContent,
} from './checkpoint-content.ts';
import { META_FILE, SAVE_ID_KEY } from './dcp-folder.ts';
import { type DcpEntry, folderMetadata, rankFileName, writeMetaFile, writeRankFile } from './dcp-folder-writer.ts';
import { METADATA_FILE } from './dcp-metadata.ts';
import { elementCount } from './dtype.ts';
import type { PyDict } from './python-value.ts';
import { type SafetensorsToWrite, safetensorsBytes, writeSafetensors } from './safetensors.ts';
import { safetensorsMetadata } from './safetensors-metadata.ts';
import type { StoredCheckpoint } from './stored-checkpoint.ts';
import { type OptimizerOptions, openOptimizer } from './stored-optimizer.ts';
import { torchFileBytes, writeTorchFile } from './torch-file-writer.ts';

/** Where a conversion writes. */
export type ConversionTarget =
  | { readonly kind: 'full' | 'safetensors'; readonly sink: ByteSink }
  | {
      readonly kind: 'sharded';
      /** In how many rank files. */
      readonly ranks: number;
      /** Of this one conversion and no other. */
      readonly saveId: string;
      /** Makes a file of the folder: opens it, lets `write` fill it, closes it. */
      readonly file: (name: string, write: (sink: ByteSink) => Promise<unknown>) => Promise<void>;
    };

export interface Conversion {
  /** Keys that the target cannot hold: the optimizer in a safetensors file, and values that are no plain data. */
  readonly dropped: readonly string[];
}

/**
 * Writes a checkpoint in another form (or the same), tensor by tensor in pieces: elements, dtypes, names, options and other
 * keys stay as they are, but model and optimizer get Fabric's keys and numbered state its names. Errors: those of
 * `openOptimizer`; 'bad-data' for a dtype that safetensors lacks; those of the sink.
 */
export async function convertCheckpoint(
  from: StoredCheckpoint,
  to: ConversionTarget,
  options: OptimizerOptions = {},
): Promise<Conversion> {
  const { content, dropped } = await contentOf(from, to.kind !== 'safetensors', options);
  if (to.kind === 'full') await writeTorchFile(contentTree(content), to.sink);
  else if (to.kind === 'sharded') await writeFolder(content, to);
  else dropped.push(...(await writeWeights(content, to.sink)));
  return { dropped };
}

/** The exact size in bytes of the file that `convertCheckpoint` makes; no tensor is read. */
export async function conversionBytes(
  from: StoredCheckpoint,
  kind: 'full' | 'safetensors',
  options: OptimizerOptions = {},
): Promise<number> {
  const { content } = await contentOf(from, kind === 'full', options);
  if (kind === 'full') return torchFileBytes(contentTree(content));
  const { tensors, metadata } = weightsOf(content);
  return safetensorsBytes(tensors, metadata);
}

/** The content of a stored checkpoint under our own keys. */
async function contentOf(
  from: StoredCheckpoint,
  withOptimizer: boolean,
  options: OptimizerOptions,
): Promise<{ content: CheckpointContent; dropped: string[] }> {
  const optimizer = withOptimizer ? await openOptimizer(from, options) : null;
  const dropped = withOptimizer ? [] : from.optimizers.map(({ path }) => path.join('.'));
  const rest: PyDict = new Map();
  for (const [key, value] of from.rest) {
    if (key === MODEL_KEY || key === OPTIMIZER_KEY || key === SAVE_ID_KEY) dropped.push(key);
    else rest.set(key, value);
  }
  return { content: { model: from.model, optimizer: optimizer?.content ?? null, rest }, dropped };
}

async function writeFolder(content: CheckpointContent, to: Extract<ConversionTarget, { kind: 'sharded' }>) {
  if (!Number.isInteger(to.ranks) || to.ranks < 1) {
    throw new StudioError('internal', `A checkpoint cannot be written by ${to.ranks} ranks.`);
  }
  const entries: DcpEntry[] = [];
  for (let rank = 0; rank < to.ranks; rank++) {
    await to.file(rankFileName(rank), async (sink) => {
      entries.push(...(await writeRankFile(content, rank, to.ranks, to.saveId, sink)));
    });
  }
  await to.file(META_FILE, (sink) => writeMetaFile(content.rest, to.saveId, sink));
  await to.file(METADATA_FILE, (sink) => sink.write(folderMetadata(content, entries)));
}

/** Weights alone, each tensor once. Returns the keys that the format cannot hold. */
export async function writeWeights(content: CheckpointContent, sink: ByteSink): Promise<readonly string[]> {
  const { tensors, metadata, dropped } = weightsOf(content);
  await writeSafetensors(tensors, sink, metadata);
  return dropped;
}

function weightsOf(content: CheckpointContent) {
  const { metadata, dropped } = safetensorsMetadata(content);
  const written = new Set<TensorContent>();
  const tensors: SafetensorsToWrite[] = [];
  for (const [name, tensor] of content.model) {
    if (written.has(tensor)) continue;
    written.add(tensor);
    const { dtype, shape } = tensor;
    tensors.push({ name, dtype, shape, chunks: () => tensor.read(0, elementCount(shape)) });
  }
  return { tensors, metadata, dropped };
}
