// One process of `npm run bench -- checkpoint`: says that it is ready, does one thing when a line comes, and says how it went.
import { createWriteStream } from 'node:fs';
import { open } from 'node:fs/promises';
import { pipeline } from 'node:stream/promises';
import { contentTree } from '../engine/checkpoint/checkpoint-content.ts';
import { writeWeights } from '../engine/checkpoint/convert-checkpoint.ts';
import { type DcpEntry, rankFileName, writeRankFile } from '../engine/checkpoint/dcp-folder-writer.ts';
import { elementCount } from '../engine/checkpoint/dtype.ts';
import { readParameter } from '../engine/checkpoint/stored-checkpoint.ts';
import { openOptimizer } from '../engine/checkpoint/stored-optimizer.ts';
import { writeTorchFile } from '../engine/checkpoint/torch-file-writer.ts';
import { convertCheckpointPath } from '../engine/node/checkpoint-convert.ts';
import { type FolderFile, writeFolderFile } from '../engine/node/checkpoint-folder.ts';
import { openCheckpointPath } from '../engine/node/checkpoint-path.ts';
import { verifyCheckpoint } from '../engine/node/checkpoint-verify.ts';
import { inspectCheckpoint } from '../engine/node/inspect-checkpoint.ts';
import { createFileSink } from '../engine/node/whole-file.ts';
import { convertedFile } from '../server/checkpoints/converted-file.ts';
import { folderArchive } from '../server/checkpoints/folder-archive.ts';
import { importCheckpoint } from '../server/checkpoints/import-checkpoint.ts';
import { noiseContent } from './checkpoint-noise.ts';
import { beginPeak, peakGrowthBytes } from './peak-memory.ts';

export interface WorkJob {
  readonly action:
    | 'write'
    | 'read'
    | 'copy'
    | 'save full'
    | 'save safetensors'
    | 'save sharded'
    | 'inspect'
    | 'verify'
    | 'load'
    | 'convert'
    | 'download'
    | 'archive'
    | 'import';
  readonly path: string;
  /** Where a copy, a conversion or an import goes. */
  readonly to: string;
  readonly model: object;
  readonly rank: number;
  readonly ranks: number;
  /** Of a plain write. */
  readonly bytes: number;
}

export interface WorkResult {
  /** How far the most memory that the process ever had is above what it had before. */
  readonly growthBytes: number;
  readonly part: { readonly file: FolderFile; readonly entries: readonly DcpEntry[] } | null;
}

const PIECE = 4 * 2 ** 20;
const job = JSON.parse(process.argv[2]) as WorkJob;

/** As a rank that resumes: its rows of each parameter and of its state, as float32. */
async function load(path: string, rank: number, ranks: number): Promise<void> {
  const { checkpoint, close } = await openCheckpointPath(path);
  const optimizer = await openOptimizer(checkpoint);
  for (const [name, { shape }] of checkpoint.model) {
    const rows = Math.ceil((shape[0] ?? 1) / ranks);
    const first = Math.min(rank * rows, shape[0] ?? 1);
    const rowElements = elementCount(shape.slice(1));
    const end = Math.min(first + rows, shape[0] ?? 1) * rowElements;
    for (let at = first * rowElements; at < end; at += PIECE) {
      const count = Math.min(PIECE, end - at);
      await readParameter(checkpoint, name, at, count);
      for (const part of ['exp_avg', 'exp_avg_sq']) await optimizer?.readState(name, part, at, count);
    }
  }
  await close();
}

async function plainWrite(path: string, bytes: number): Promise<void> {
  const file = await open(path, 'w');
  const piece = new Uint8Array(PIECE).fill(7);
  for (let left = bytes; left > 0; left -= PIECE) await file.write(piece, 0, Math.min(PIECE, left));
  await file.sync();
  await file.close();
}

async function plainCopy(path: string, to: string | null): Promise<void> {
  const from = await open(path, 'r');
  const into = to === null ? null : await open(to, 'w');
  const piece = new Uint8Array(PIECE);
  for (;;) {
    const { bytesRead } = await from.read(piece, 0, PIECE);
    if (bytesRead === 0) break;
    await into?.write(piece, 0, bytesRead);
  }
  await into?.sync();
  await into?.close();
  await from.close();
}

async function saveFile(path: string, write: (sink: Awaited<ReturnType<typeof createFileSink>>) => Promise<unknown>) {
  const sink = await createFileSink(path);
  await write(sink);
  await sink.commit();
}

async function work(): Promise<WorkResult['part']> {
  const { action, path, to, rank, ranks } = job;
  if (action === 'write') await plainWrite(path, job.bytes);
  else if (action === 'read') await plainCopy(path, null);
  else if (action === 'copy') await plainCopy(path, to);
  else if (action === 'inspect') await inspectCheckpoint(path);
  else if (action === 'verify') await verifyCheckpoint(path);
  else if (action === 'load') await load(path, rank, ranks);
  else if (action === 'convert') await convertCheckpointPath({ from: path, to, kind: 'safetensors' });
  else if (action === 'download') {
    const file = await convertedFile(path, 'full');
    await pipeline(file.read(), createWriteStream('/dev/null'));
    await file.close();
  } else if (action === 'archive') {
    const archive = await folderArchive(path);
    await pipeline(archive.read(0, archive.bytes - 1), createWriteStream('/dev/null'));
  } else if (action === 'import') {
    const archive = await folderArchive(path);
    const source = archive.read(0, archive.bytes - 1);
    const signal = new AbortController().signal;
    const called = { brought: 'imported.tar', name: 'imported.tar' };
    await importCheckpoint({ ...called, source, maxBytes: archive.bytes, signal }, to);
  } else if (action === 'save sharded') {
    const { file, result } = await writeFolderFile(path, rankFileName(rank), (sink) =>
      writeRankFile(content!, rank, ranks, 'bench', sink),
    );
    return { file, entries: result };
  } else if (action === 'save full') await saveFile(path, (sink) => writeTorchFile(contentTree(content!), sink));
  else if (action === 'save safetensors') await saveFile(path, (sink) => writeWeights(content!, sink));
  else action satisfies never;
  return null;
}

const content = job.action.startsWith('save') ? noiseContent(job.model) : null;
process.stdout.write('ready\n');
process.stdin.once('data', async () => {
  process.stdin.pause();
  const before = await beginPeak();
  const part = await work();
  const result: WorkResult = { growthBytes: await peakGrowthBytes(before), part };
  process.stdout.write(`${JSON.stringify(result)}\n`);
});
