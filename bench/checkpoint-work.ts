// One process of `npm run bench -- checkpoint`: says that it is ready, does one thing when a line comes, and says how it went.
import { createWriteStream } from 'node:fs';
import { mkdir, open, stat } from 'node:fs/promises';
import { pipeline } from 'node:stream/promises';
import type { CheckpointKind } from '../engine/checkpoint/stored-checkpoint.ts';
import { convertCheckpointPath } from '../engine/node/checkpoint-convert.ts';
import { verifyCheckpoint } from '../engine/node/checkpoint-verify.ts';
import { inspectCheckpoint } from '../engine/node/inspect-checkpoint.ts';
import { convertedFile } from '../server/checkpoints/converted-file.ts';
import { folderArchive } from '../server/checkpoints/folder-archive.ts';
import { importCheckpoint } from '../server/checkpoints/import-checkpoint.ts';
import { beginPeak, peakGrowthBytes } from './peak-memory.ts';
import { leaveHoles } from './sparse-writes.ts';
import { loadingRank, savingRank } from './storing-rank.ts';

export interface WorkJob {
  readonly action:
    | 'write'
    | 'read'
    | 'copy'
    | 'save'
    | 'inspect'
    | 'verify'
    | 'load'
    | 'convert'
    | 'download'
    | 'archive'
    | 'import';
  /** Of a save, the folder below which the checkpoint appears. */
  readonly path: string;
  /** Where a copy, a conversion or an import goes. */
  readonly to: string;
  /** What is saved, or converted to. */
  readonly kind: CheckpointKind;
  readonly model: object;
  /** All values are zeros, and zeros are not written; see `leaveHoles`. */
  readonly sparse?: boolean;
  readonly rank: number;
  readonly ranks: number;
}

export interface WorkResult {
  /** How far the most memory that the process ever had is above what it had before. */
  readonly growthBytes: number;
}

const PIECE = 4 * 2 ** 20;
const job = JSON.parse(process.argv[2]) as WorkJob;

/** As many bytes as a file has. */
async function plainWrite(as: string, to: string): Promise<void> {
  const { size } = await stat(as);
  const file = await open(to, 'w');
  const piece = new Uint8Array(PIECE).fill(7);
  for (let left = size; left > 0; left -= PIECE) await file.write(piece, 0, Math.min(PIECE, left));
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

async function work(): Promise<void> {
  const { action, path, to } = job;
  if (action === 'write') await plainWrite(path, to);
  else if (action === 'read') await plainCopy(path, null);
  else if (action === 'copy') await plainCopy(path, to);
  else if (action === 'inspect') await inspectCheckpoint(path);
  else if (action === 'verify') await verifyCheckpoint(path);
  else if (action === 'load' || action === 'save') await rankDoes!();
  else if (action === 'convert') await convertCheckpointPath({ from: path, to, kind: job.kind, ranks: 2 });
  else if (action === 'download') {
    const file = await convertedFile(path, 'full');
    await pipeline(file.read(), createWriteStream('/dev/null'));
    await file.close();
  } else if (action === 'archive') {
    const archive = await folderArchive(path);
    await pipeline(archive.read(0, archive.bytes - 1), createWriteStream('/dev/null'));
  } else if (action === 'import') {
    await mkdir(to);
    const archive = await folderArchive(path);
    const source = archive.read(0, archive.bytes - 1);
    const signal = new AbortController().signal;
    const called = { brought: 'imported.tar', name: 'imported.tar' };
    await importCheckpoint({ ...called, source, maxBytes: archive.bytes, signal }, to);
  } else action satisfies never;
}

if (job.sparse) await leaveHoles();
const rankDoes =
  job.action === 'save'
    ? await savingRank(job.path, job.kind, job)
    : job.action === 'load'
      ? loadingRank(job.path, job)
      : null;
process.stdout.write('ready\n');
process.stdin.once('data', async () => {
  process.stdin.pause();
  const before = await beginPeak();
  await work();
  const result: WorkResult = { growthBytes: await peakGrowthBytes(before) };
  process.stdout.write(`${JSON.stringify(result)}\n`);
});
