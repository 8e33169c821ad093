import { fileURLToPath } from 'node:url';
import type { z } from 'zod';
import type { ErrorCode } from '../../engine/errors.ts';
import { childLines } from '../children/child-lines.ts';
import type { FailedLine, VerifyLine } from '../contract.ts';
import { type CheckpointTask, CheckpointTaskLine } from './checkpoint-task.ts';

/** What reading a checkpoint may take: from one line to the next, in all, and of memory. */
export interface ReadingBounds {
  readonly lineMs: number;
  readonly allMs: number;
  readonly memoryBytes: number;
}
/** A file of the largest size that may be brought, from a slow disk; more memory than any tensor in pieces needs. */
export const READING_BOUNDS: ReadingBounds = { lineMs: 120_000, allMs: 3_600_000, memoryBytes: 2 ** 30 };

const GOES_ON: ReadonlySet<CheckpointTaskLine['type']> = new Set(['progress', 'file', 'inspected', 'refused']);
const WORKER = fileURLToPath(new URL('./checkpoint-worker.ts', import.meta.url));

/**
 * Works on a checkpoint in a process of its own and gives its lines; the last is what its task ends with, or `failed`, the
 * bounds and its death among the reasons, but there is none where `signal` stops it. The process is gone when this returns.
 */
export async function* checkpointInProcess(
  task: CheckpointTask,
  signal: AbortSignal,
  { lineMs, allMs, memoryBytes }: ReadingBounds = READING_BOUNDS,
): AsyncGenerator<CheckpointTaskLine, void, void> {
  const until = performance.now() + allMs;
  const child = {
    entry: WORKER,
    line: CheckpointTaskLine,
    isLast: ({ type }: CheckpointTaskLine) => !GOES_ON.has(type),
    memoryBytes,
    waitMs: () => Math.min(lineMs, until - performance.now()),
  };
  const end = yield* childLines(child, task, signal);
  if (end.how === 'late')
    yield failed(
      'timeout',
      performance.now() >= until
        ? `The checkpoint was not read within ${allMs / 1000} s, so this was ended.`
        : `Nothing of the checkpoint could be read for ${lineMs / 1000} s, so this was ended. Look after the disk that it is on.`,
    );
  if (end.how === 'too-large')
    yield failed(
      'too-large',
      `Reading the checkpoint took more than ${memoryBytes / 2 ** 20} MiB of memory, so this was ended: it is damaged, or made to do harm.`,
    );
  if (end.how === 'died') yield failed('worker-died', `The process that reads the checkpoint ${end.said}`);
}

/** Looks at all of a checkpoint so. */
export async function* verifyInProcess(
  path: string,
  signal: AbortSignal,
  bounds?: ReadingBounds,
): AsyncGenerator<VerifyLine, void, void> {
  for await (const line of checkpointInProcess({ action: 'verify', path }, signal, bounds))
    if (line.type === 'progress' || line.type === 'file' || line.type === 'verified' || line.type === 'failed')
      yield line;
}

function failed(code: ErrorCode, message: string): z.infer<typeof FailedLine> {
  return { type: 'failed', error: { code, message } };
}
