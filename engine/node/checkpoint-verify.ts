import { stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import type { CheckpointKind } from '../checkpoint/stored-checkpoint.ts';
import { type ErrorCode, StudioError } from '../errors.ts';
import { readDigestList } from './checkpoint-folder.ts';
import { openCheckpointPath, plainFiles } from './checkpoint-path.ts';
import { sha256OfFile } from './digested-file.ts';
import { naming } from './file-bytes.ts';
import { readDigest, verifyFile } from './whole-file.ts';

/** Each is read and hashed in threads of the pool, which has four unless told otherwise. */
const FILES_AT_ONCE = 3;

export interface Verification {
  readonly kind: CheckpointKind;
  /** Whether there were digests to compare with. Without, the checks of the format itself were made (CRC-32, lengths). */
  readonly digests: boolean;
}

/** One file that was looked at, and what is wrong with it. */
export interface FileVerdict {
  readonly name: string;
  readonly problem: { readonly code: ErrorCode; readonly message: string } | null;
}

/** Whoever follows a verification. */
export interface VerificationWatch {
  onRead?(bytes: number): void;
  onFile?(verdict: FileVerdict): void;
}

/**
 * Reads a checkpoint once and throws 'bad-file', naming the file, if it is not what its digests say: a changed, missing or
 * additional file. Without digests beside it, by what its format has. All files are looked at before the first problem is
 * thrown.
 */
export async function verifyCheckpoint(path: string, watch: VerificationWatch = {}): Promise<Verification> {
  const info = await naming(path, () => stat(path));
  const found = info.isDirectory() ? await verifyFolder(path, watch) : await verifyFileDigest(path, watch);
  if (found.problem) throw found.problem;
  const { digests } = found;
  const { checkpoint, close } = await openCheckpointPath(path, {}, digests ? undefined : watch.onRead);
  try {
    if (digests) return { kind: checkpoint.kind, digests };
    await checkpoint.verify();
    const names = info.isDirectory() ? await plainFiles(path) : [basename(path)];
    for (const name of names) watch.onFile?.({ name, problem: null });
    return { kind: checkpoint.kind, digests };
  } finally {
    await close();
  }
}

interface Compared {
  readonly digests: boolean;
  /** The first. */
  readonly problem: StudioError | null;
}

async function verifyFileDigest(path: string, watch: VerificationWatch): Promise<Compared> {
  if ((await naming(path, () => readDigest(path))) === null) return { digests: false, problem: null };
  return { digests: true, problem: await verdictOf(basename(path), watch, () => verifyFile(path, watch.onRead)) };
}

async function verifyFolder(path: string, watch: VerificationWatch): Promise<Compared> {
  const digests = await naming(path, () => readDigestList(path));
  const names = await plainFiles(path);
  if (!digests) return { digests: false, problem: null };
  const all = [...new Set([...names.filter((each) => !digests.has(each)), ...digests.keys()])];
  const problems = await mapAtOnce(all, FILES_AT_ONCE, (name) =>
    verdictOf(name, watch, async () => {
      const expected = digests.get(name);
      if (expected === undefined) throw bad(path, `holds ${name}, which is not on its list of digests`);
      if (!names.includes(name)) throw bad(path, `lacks ${name}, which is on its list of digests`);
      if ((await sha256OfFile(join(path, name), watch.onRead)) !== expected)
        throw bad(join(path, name), 'has changed since it was written: its sha256 is another');
    }),
  );
  return { digests: true, problem: problems.find((problem) => problem !== null) ?? null };
}

/** What `each` gives for every item, in their order, at most `most` at once. A failure is thrown when none is under way. */
async function mapAtOnce<T, R>(items: readonly T[], most: number, each: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = [];
  const left = items.entries();
  const lane = async () => {
    for (const [index, item] of left) results[index] = await each(item);
  };
  const lanes = await Promise.allSettled(Array.from({ length: most }, lane));
  const failed = lanes.find((ended) => ended.status === 'rejected');
  if (failed) throw failed.reason;
  return results;
}

/** Looks at one file and says what was found. What is no problem of the file is thrown. */
async function verdictOf(
  name: string,
  watch: VerificationWatch,
  look: () => Promise<unknown>,
): Promise<StudioError | null> {
  try {
    await look();
    watch.onFile?.({ name, problem: null });
    return null;
  } catch (error) {
    if (!(error instanceof StudioError)) throw error;
    watch.onFile?.({ name, problem: { code: error.code, message: error.message } });
    return error;
  }
}

function bad(path: string, what: string): StudioError {
  return new StudioError('bad-file', `${path} ${what}.`, { file: path });
}
