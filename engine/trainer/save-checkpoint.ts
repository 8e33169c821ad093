import type { ByteSink } from '../checkpoint/byte-source.ts';
import { type CheckpointContent, contentTree } from '../checkpoint/checkpoint-content.ts';
import { writeWeights } from '../checkpoint/convert-checkpoint.ts';
import { type DcpEntry, rankFileName, writeRankFile } from '../checkpoint/dcp-folder-writer.ts';
import { type CheckpointDescription, checkpointContent } from '../checkpoint/run-content.ts';
import type { CheckpointKind } from '../checkpoint/stored-checkpoint.ts';
import { writeTorchFile } from '../checkpoint/torch-file-writer.ts';
import { exchangeTexts, type TextRegions } from '../comm/exchange-texts.ts';
import type { ExperimentConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import { partsInOrder } from './describe-checkpoint.ts';
import type { CheckpointRecord } from './events.ts';
import { drainParts, gatheringReader, isWriter, ownRowsReader, type SavingRank } from './full-save.ts';
import { waitTogether } from './wait-together.ts';

/** A file of a sharded checkpoint as its rank wrote it: plain data. */
export interface WrittenRankFile {
  readonly file: { readonly name: string; readonly bytes: number; readonly sha256: string };
  readonly entries: readonly DcpEntry[];
}

/** A folder that is being written. */
export interface BegunFolder {
  /** The temporary folder in which every rank writes its file. */
  readonly folder: string;
  /** Of this save and no other. */
  readonly saveId: string;
}

/** The disk that checkpoints go to. What it makes appears under its final name whole or not at all. */
export interface CheckpointStore {
  writeFile(
    format: 'full' | 'safetensors',
    step: number,
    write: (sink: ByteSink) => Promise<unknown>,
  ): Promise<CheckpointRecord>;
  beginFolder(step: number): Promise<BegunFolder>;
  writeRankFile(
    folder: string,
    name: string,
    write: (sink: ByteSink) => Promise<readonly DcpEntry[]>,
  ): Promise<WrittenRankFile>;
  finishFolder(
    begun: BegunFolder,
    step: number,
    content: CheckpointContent,
    files: readonly WrittenRankFile[],
  ): Promise<CheckpointRecord>;
  abortFolder(folder: string): Promise<void>;
  /** Of the host, now. */
  freeMemoryBytes(): number;
  /** Deletes the oldest whole checkpoints until `count` are left; returns their paths. */
  keepLast(count: number): Promise<readonly string[]>;
}

export interface SaveJob {
  readonly rank: SavingRank;
  readonly texts: TextRegions;
  readonly store: CheckpointStore;
  readonly config: ExperimentConfig;
  readonly format: CheckpointKind;
  readonly description: CheckpointDescription;
  /** Told of ranks that the others wait for, whose disks are slow. */
  readonly onLate?: (ranks: readonly number[]) => void;
}

export type SaveResult =
  | {
      readonly saved: CheckpointRecord;
      /** Older ones that checkpoint.keepLast deleted. */
      readonly removed: readonly string[];
      /** Why some that it should have deleted are still there. */
      readonly notRemoved: string | null;
    }
  | { readonly failed: string };

/**
 * Saves a checkpoint: all ranks must call, with the same job, and all get the same result. A disk that fails is in the
 * result, and then nothing of the checkpoint stays; what is thrown (a lost peer or device) ends the run. A disk may take
 * any time: the ranks wait for each other as long as each says that it is at it.
 */
export async function saveCheckpoint(job: SaveJob): Promise<SaveResult> {
  const { mailbox } = job.rank;
  const { ending } = job.format === 'sharded' ? await saveFolder(job) : await saveFile(job, job.format);
  const mine = ending.then((written) => ('done' in written ? deleteOlder(job, written.done) : written));
  const [said] = await exchangeTexts(mailbox, job.texts, JSON.stringify(await allReady(job, mine)));
  return JSON.parse(said) as SaveResult;
}

/** What is left to do once nothing is gathered any more and no rank writes but rank 0. */
interface Ending {
  readonly ending: Promise<Attempt<CheckpointRecord>>;
}

function allReady<T>({ rank, texts, onLate }: SaveJob, mine: Promise<T>): Promise<T> {
  return waitTogether(rank.mailbox, texts.sizes, mine, { onLate });
}

async function deleteOlder({ store, config }: SaveJob, saved: CheckpointRecord): Promise<SaveResult> {
  const { keepLast } = config.checkpoint;
  if (keepLast === null) return { saved, removed: [], notRemoved: null };
  const removed = await attempt(() => store.keepLast(keepLast));
  return 'done' in removed
    ? { saved, removed: removed.done, notRemoved: null }
    : { saved, removed: [], notRemoved: removed.failed };
}

/** One file, which rank 0 writes as it gathers; the others only give. */
async function saveFile(job: SaveJob, format: 'full' | 'safetensors'): Promise<Ending> {
  const { rank, store, description, config } = job;
  const parts = [...partsInOrder(description, config.optimizer, format === 'full')];
  if (rank.mailbox.rank !== 0) {
    await drainParts(rank, parts);
    return { ending: Promise.resolve(leftToRank0) };
  }
  let taken = 0;
  let open: AsyncGenerator<Uint8Array> | null = null;
  let allGathered!: () => void;
  const gathered = new Promise<void>((resolve) => {
    allGathered = resolve;
  });
  const read = gatheringReader(rank, {
    onBegin: (pieces) => {
      taken++;
      open = pieces;
    },
    onEnd: () => {
      if (taken === parts.length) allGathered();
    },
  });
  const content = checkpointContent(description, read);
  const write = (sink: ByteSink) =>
    format === 'full' ? writeTorchFile(contentTree(content), sink) : writeWeights(content, sink);
  const writing = attempt(() => store.writeFile(format, description.iter, write)).then(async (result) => {
    if ('failed' in result) {
      // The peers are not left waiting.
      if (open) for await (const _ of open as AsyncGenerator<Uint8Array>);
      await drainParts(rank, parts.slice(taken));
    }
    return result;
  });
  await Promise.race([writing, gathered]);
  return { ending: writing };
}

/** A folder: each rank of the first row writes its own shard, all at once; rank 0 makes the folder and finishes it. */
async function saveFolder(job: SaveJob): Promise<Ending> {
  const { rank, texts, store, description } = job;
  const { run, mailbox } = rank;
  const say = <T>(mine: Attempt<T> | null) => exchangeTexts(mailbox, texts, JSON.stringify(mine));
  const isFirst = mailbox.rank === 0;
  const begin = isFirst ? await attempt(() => store.beginFolder(description.iter)) : null;
  const begun = JSON.parse((await say(begin))[0]) as Attempt<BegunFolder>;
  if ('failed' in begun) return { ending: Promise.resolve(begun) };
  const { folder, saveId } = begun.done;
  const content = checkpointContent(description, ownRowsReader(rank));
  const { index, count } = run.shards;
  const write = (sink: ByteSink) => writeRankFile(content, index, count, saveId, sink);
  const writing = isWriter(run) ? attempt(() => store.writeRankFile(folder, rankFileName(index), write)) : null;
  const written = await allReady<Attempt<WrittenRankFile> | null>(job, writing ?? Promise.resolve(null));
  const all = (await say(written)).map((text) => JSON.parse(text) as Attempt<WrittenRankFile> | null);
  const files: WrittenRankFile[] = [];
  const failures: string[] = [];
  for (const [from, one] of all.entries()) {
    if (one && 'failed' in one) failures.push(count > 1 ? `rank ${from}: ${one.failed}` : one.failed);
    else if (one) files.push(one.done);
  }
  if (!isFirst) return { ending: Promise.resolve(leftToRank0) };
  const finish = async (): Promise<Attempt<CheckpointRecord>> => {
    const finished: Attempt<CheckpointRecord> =
      failures.length > 0
        ? { failed: failures.join('; ') }
        : await attempt(() => store.finishFolder(begun.done, description.iter, content, files));
    // What cannot be removed does not count, and goes at the next start.
    if ('failed' in finished) await attempt(() => store.abortFolder(folder));
    return finished;
  };
  return { ending: finish() };
}

/** What ranks other than 0 say, who hear the result from it. */
const leftToRank0: Attempt<never> = { failed: 'rank 0 knows' };

type Attempt<T> = { readonly done: T } | { readonly failed: string };

/** What a disk may do to a save is a result; all else is thrown. */
async function attempt<T>(action: () => Promise<T>): Promise<Attempt<T>> {
  try {
    return { done: await action() };
  } catch (error) {
    if (!(error instanceof StudioError) || !DISK_ERRORS.includes(error.code)) throw error;
    return { failed: error.message };
  }
}

const DISK_ERRORS: readonly string[] = ['io', 'conflict', 'not-found', 'bad-data'];
