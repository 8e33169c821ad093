import { StudioError } from '../errors.ts';
import type { ByteSink } from './byte-source.ts';
import {
  type CheckpointContent,
  isTensorContent,
  MODEL_KEY,
  OPTIMIZER_KEY,
  treeToWrite,
} from './checkpoint-content.ts';
import { coverFault } from './chunk-cover.ts';
import { SAVE_ID_KEY } from './dcp-folder.ts';
import type { DcpBytes, DcpChunk, DcpPath, DcpPlace, DcpTensor } from './dcp-metadata.ts';
import { writeDcpMetadata } from './dcp-metadata-writer.ts';
import { type DType, elementCount } from './dtype.ts';
import type { PyDict, PyValue } from './python-value.ts';
import { tensorToWrite, writeTorchFile } from './torch-file-writer.ts';

/** What a rank tells rank 0 about one chunk or value that it wrote: plain data, to be sent as JSON. */
export interface DcpEntry extends DcpPlace {
  /** Sizes of the chunk; null for a value that is no tensor. */
  readonly sizes: readonly number[] | null;
}

/** One leaf of the checkpoint: a tensor or another value, under the path that torch gives it. */
interface DcpItem {
  readonly name: string;
  readonly path: DcpPath;
  readonly value: PyValue;
}

/** The rows of dimension 0 that a rank of `world` writes: ceil-sized chunks as torch.chunk makes them, so the last may have none. */
export function chunkRows(
  rows: number,
  rank: number,
  world: number,
): { readonly first: number; readonly count: number } {
  const chunk = Math.ceil(rows / world);
  const first = Math.min(rank * chunk, rows);
  return { first, count: Math.min(chunk, rows - first) };
}

export const rankFileName = (rank: number): string => `__${rank}_0.distcp`;

/**
 * Writes the file of one rank: its rows of every tensor, each as a torch file of its own, one after the other; nothing else
 * of a tensor is asked for. Rank 0 also writes scalars, empty tensors and what is no tensor. The save's id comes first.
 * Returns what rank 0 needs for `.metadata`.
 */
export async function writeRankFile(
  content: CheckpointContent,
  rank: number,
  world: number,
  saveId: string,
  sink: ByteSink,
): Promise<DcpEntry[]> {
  const file = rankFileName(rank);
  const entries: DcpEntry[] = [];
  let start = await writeTorchFile(new Map([[SAVE_ID_KEY, saveId]]), sink);
  const put = async (name: string, value: PyValue, box: Pick<DcpEntry, 'offsets' | 'sizes'>): Promise<void> => {
    const bytes = await writeTorchFile(value, sink);
    entries.push({ name, file, start, bytes, ...box });
    start += bytes;
  };

  const items = [...itemsOf(content)];
  // torch puts what is no tensor first.
  for (const { name, value } of rank === 0 ? items : []) {
    if (!isTensorContent(value)) await put(name, treeToWrite(value), { offsets: null, sizes: null });
  }
  const written = new Set<PyValue>();
  for (const { name, value } of items) {
    if (!isTensorContent(value) || written.has(value)) continue;
    written.add(value);
    const { dtype, shape } = value;
    const box = boxToWrite(shape, rank, world);
    if (!box) continue;
    const first = (box.offsets[0] ?? 0) * elementCount(shape.slice(1));
    await put(
      name,
      tensorToWrite(dtype, box.sizes, () => value.read(first, elementCount(box.sizes))),
      box,
    );
  }
  return entries;
}

/** The rank's rows, or null if it has none. A scalar, and a tensor without elements, is rank 0's whole. */
function boxToWrite(shape: readonly number[], rank: number, world: number): DcpChunk | null {
  const whole = { offsets: shape.map(() => 0), sizes: shape };
  if (shape.length === 0 || shape.includes(0)) return rank === 0 ? whole : null;
  const { first, count } = chunkRows(shape[0], rank, world);
  const offsets = [first, ...whole.offsets.slice(1)];
  return count > 0 ? { offsets, sizes: [count, ...shape.slice(1)] } : null;
}

/**
 * `.metadata` from the entries of all ranks: every item with its path, a tensor under two names pointing twice at the same
 * bytes. A part that no rank wrote is an 'internal' error by name.
 */
export function folderMetadata(content: CheckpointContent, entries: readonly DcpEntry[]): Uint8Array<ArrayBuffer> {
  const byName = new Map<string, DcpEntry[]>();
  for (const entry of entries) byName.set(entry.name, [...(byName.get(entry.name) ?? []), entry]);

  const items = new Map<string, DcpTensor | DcpBytes>();
  const paths = new Map<string, DcpPath>();
  const places: DcpPlace[] = [];
  const firstNames = new Map<PyValue, string>();
  for (const { name, path, value } of itemsOf(content)) {
    if (items.has(name)) throw new StudioError('bad-data', `Two parts of the checkpoint are both called ${name}.`);
    const isTensor = isTensorContent(value);
    const firstName = (isTensor ? firstNames.get(value) : undefined) ?? name;
    if (isTensor) firstNames.set(value, firstName);
    const written = (byName.get(firstName) ?? []).toSorted((a, b) => (a.offsets?.[0] ?? 0) - (b.offsets?.[0] ?? 0));
    items.set(name, isTensor ? tensorItem(name, value.dtype, value.shape, written) : { kind: 'bytes' });
    if (written.length === 0) throw new StudioError('internal', `No rank wrote ${name}.`);
    paths.set(name, path);
    for (const { offsets, file, start, bytes } of written) places.push({ name, offsets, file, start, bytes });
  }
  return writeDcpMetadata({ items, paths, places });
}

function tensorItem(name: string, dtype: DType, shape: readonly number[], written: readonly DcpEntry[]): DcpTensor {
  const chunks = written.map(({ offsets, sizes }) => ({ offsets: offsets!, sizes: sizes! }));
  const fault = coverFault(shape, chunks);
  if (fault) throw new StudioError('internal', `The ranks did not write all of ${name}: ${fault}.`);
  return { kind: 'tensor', dtype, shape, chunks };
}

/** meta.pt: Fabric's other keys, and the save's id. Its presence is what makes a folder Fabric's. */
export function writeMetaFile(rest: PyDict, saveId: string, sink: ByteSink): Promise<number> {
  return writeTorchFile(treeToWrite(new Map([...rest, [SAVE_ID_KEY, saveId]])), sink);
}

/**
 * Every leaf in the order of `.metadata`, named as torch flattens a dict: each option of a param_group by itself. An
 * optimizer without state keeps an empty `state`, which torch's own writer loses and its loader then misses.
 */
function* itemsOf({ model, optimizer }: CheckpointContent): Generator<DcpItem> {
  const item = (value: PyValue, ...path: (string | number)[]): DcpItem => ({ name: path.join('.'), path, value });
  for (const [name, tensor] of model) yield item(tensor, MODEL_KEY, name);
  if (!optimizer) return;
  if (optimizer.state.size === 0) yield item(new Map(), OPTIMIZER_KEY, 'state');
  for (const [name, parts] of optimizer.state) {
    for (const [part, value] of parts) yield item(value, OPTIMIZER_KEY, 'state', name, part);
  }
  for (const [index, group] of optimizer.groups.entries()) {
    for (const [option, value] of group) yield item(value, OPTIMIZER_KEY, 'param_groups', index, String(option));
  }
}
