import type { TensorStatistics } from '../../engine/checkpoint/tensor-statistics.ts';
import { type ErrorCode, StudioError } from '../../engine/errors.ts';
import type { CheckpointInspection } from '../../engine/node/inspect-checkpoint.ts';
import { checkpointInProcess, type ReadingBounds } from './checkpoint-process.ts';
import type { CheckpointTask } from './checkpoint-task.ts';

/** An inspection whose list of tensors may end early; `tensorCount` counts all. */
export type BoundedInspection = CheckpointInspection & { readonly tensorCount: number };

/** Looking takes a core for a moment, and a file made to do harm takes all that it is given. */
const LOOKING_BOUNDS: ReadingBounds = { lineMs: 60_000, allMs: 300_000, memoryBytes: 2 ** 30 };
/** All elements of a large tensor are read before there is a line. */
const TENSOR_BOUNDS: ReadingBounds = { ...LOOKING_BOUNDS, lineMs: LOOKING_BOUNDS.allMs };
const MAX_AT_ONCE = 2;
const MAX_WAITING = 16;
/** More tensors than any model has that this studio trains; beyond, a page of them is of no use. */
const MAX_TENSORS = 10_000;

let looking = 0;
const waiting: (() => void)[] = [];

/**
 * What each of the checkpoints holds, without its tensors, or why it cannot be told; looked at one after the other in one
 * process. Throws `conflict` when too many wait.
 */
export function lookInProcess(
  paths: readonly string[],
  signal: AbortSignal,
): Promise<Map<string, BoundedInspection | StudioError>> {
  return inTurn(signal, () => inspectAll(paths, 0, signal));
}

/** What a checkpoint holds, at most 10,000 of its tensors listed. Errors: those of `inspectCheckpoint`, the bounds, `conflict`. */
export async function inspectInProcess(path: string, signal: AbortSignal): Promise<BoundedInspection> {
  const found = (await inTurn(signal, () => inspectAll([path], MAX_TENSORS, signal))).get(path);
  if (found instanceof StudioError) throw found;
  if (!found) throw unanswered();
  return found;
}

/** Errors: those of `inspectTensor`, the bounds, `conflict`. */
export function inspectTensorInProcess(path: string, name: string, signal: AbortSignal): Promise<TensorStatistics> {
  return inTurn(signal, async () => {
    for await (const line of checkpointInProcess({ action: 'tensor', path, name }, signal, TENSOR_BOUNDS)) {
      if (line.type === 'failed') throw failure(line.error);
      if (line.type === 'tensor') return JSON.parse(line.json) as TensorStatistics;
    }
    throw unanswered();
  });
}

/** A process that ends at one of them is followed by another for the rest. */
async function inspectAll(
  paths: readonly string[],
  tensors: number,
  signal: AbortSignal,
): Promise<Map<string, BoundedInspection | StudioError>> {
  const found = new Map<string, BoundedInspection | StudioError>();
  for (let left = paths; left.length && !signal.aborted; left = paths.filter((path) => !found.has(path))) {
    const task: CheckpointTask = { action: 'inspect', paths: left, tensors };
    for await (const line of checkpointInProcess(task, signal, LOOKING_BOUNDS)) {
      if (line.type === 'inspected') found.set(line.path, JSON.parse(line.json) as BoundedInspection);
      if (line.type === 'refused') found.set(line.path, failure(line.error));
      const at = left.find((path) => !found.has(path));
      if (line.type === 'failed' && at !== undefined) found.set(at, failure(line.error));
    }
  }
  return found;
}

async function inTurn<T>(signal: AbortSignal, look: () => Promise<T>): Promise<T> {
  if (looking >= MAX_AT_ONCE) {
    if (waiting.length >= MAX_WAITING)
      throw new StudioError('conflict', 'Too many checkpoints are being looked at; ask again in a moment.');
    // Whoever ends hands its place on.
    await new Promise<void>((resolve) => waiting.push(resolve));
  } else looking++;
  try {
    if (signal.aborted) throw unanswered();
    return await look();
  } finally {
    const next = waiting.shift();
    if (next) next();
    else looking--;
  }
}

const failure = ({ code, message }: { code: string; message: string }) => new StudioError(code as ErrorCode, message);
/** Nobody reads this: only who went away gets no answer. */
const unanswered = () => new StudioError('conflict', 'Nobody waited for the checkpoint to be looked at.');
