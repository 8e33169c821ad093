import { conversionBytes } from '../../engine/checkpoint/convert-checkpoint.ts';
import { StudioError } from '../../engine/errors.ts';
import { convertCheckpointPath } from '../../engine/node/checkpoint-convert.ts';
import { openCheckpointPath } from '../../engine/node/checkpoint-path.ts';
import { verifyCheckpoint } from '../../engine/node/checkpoint-verify.ts';
import { naming } from '../../engine/node/file-bytes.ts';
import { type CheckpointInspection, inspectCheckpoint, inspectTensor } from '../../engine/node/inspect-checkpoint.ts';
import { answerServer, say, told } from '../children/child-side.ts';
import { checkpointBytes } from '../runs/checkpoint-files.ts';
import type { CheckpointTask, CheckpointTaskLine } from './checkpoint-task.ts';

/**
 * The process that reads a whole checkpoint for the studio: apart, so that neither its work nor its memory is the
 * server's. It is told one task, says how far it is, and ends.
 */
answerServer((task) => workOn(task as CheckpointTask));

const PROGRESS_MS = 100;
/** What the server and a page take of one inspection: boxes of all tensors, and its text. */
const MAX_PARTS = 50_000;
const MAX_TEXT_CHARACTERS = 16 * 2 ** 20;

async function workOn(task: CheckpointTask): Promise<void> {
  const tell = (line: CheckpointTaskLine) => say(line);
  try {
    await tell(await done(task, tell));
  } catch (error) {
    await tell({ type: 'failed', error: told(error, 'Reading the checkpoint') });
  }
}

function done(task: CheckpointTask, tell: Tell): Promise<CheckpointTaskLine> {
  if (task.action === 'verify') return verify(task, tell);
  if (task.action === 'convert') return convert(task, tell);
  return task.action === 'inspect' ? inspect(task, tell) : tensor(task);
}

type Tell = (line: CheckpointTaskLine) => Promise<void>;

async function verify({ path }: { path: string }, tell: Tell): Promise<CheckpointTaskLine> {
  const count = counter(await naming(path, () => checkpointBytes(path)), tell);
  const { kind, digests } = await verifyCheckpoint(path, {
    onRead: count,
    onFile: (verdict) => void tell({ type: 'file', ...verdict }),
  });
  return { type: 'verified', kind, digests };
}

async function convert(request: CheckpointTask & { action: 'convert' }, tell: Tell): Promise<CheckpointTaskLine> {
  const { from, to, kind, ranks } = request;
  const { checkpoint, close } = await openCheckpointPath(from);
  // A folder is as large as one file of everything, but for its metadata.
  const ofBytes = await conversionBytes(checkpoint, kind === 'safetensors' ? kind : 'full').finally(close);
  const { dropped } = await convertCheckpointPath({ from, to, kind, ranks, onWritten: counter(ofBytes, tell) });
  return { type: 'converted', dropped: [...dropped] };
}

async function inspect(
  { paths, tensors }: CheckpointTask & { action: 'inspect' },
  tell: Tell,
): Promise<CheckpointTaskLine> {
  for (const path of paths) {
    try {
      await tell({ type: 'inspected', path, json: inspectedText(path, await inspectCheckpoint(path), tensors) });
    } catch (error) {
      await tell({ type: 'refused', path, error: told(error, 'Looking at the checkpoint') });
    }
  }
  return { type: 'looked' };
}

function inspectedText(path: string, inspection: CheckpointInspection, most: number): string {
  const tensorCount = inspection.tensors.length;
  const shown = [];
  let parts = 0;
  for (const tensor of inspection.tensors.slice(0, most)) {
    parts += tensor.parts.length;
    if (parts > MAX_PARTS) break;
    shown.push(tensor);
  }
  const text = JSON.stringify({ ...inspection, tensors: shown, tensorCount });
  if (text.length > MAX_TEXT_CHARACTERS)
    throw new StudioError(
      'too-large',
      `${path} says more of itself than can be shown: it is damaged, or made to do harm.`,
    );
  return text;
}

async function tensor({ path, name }: CheckpointTask & { action: 'tensor' }): Promise<CheckpointTaskLine> {
  return { type: 'tensor', json: JSON.stringify(await inspectTensor(path, name)) };
}

/** Adds bytes up and says so now and then, the beginning at once. */
function counter(ofBytes: number, tell: Tell): (bytes: number) => void {
  let doneBytes = 0;
  let saidAt = performance.now();
  const sayIt = () => void tell({ type: 'progress', doneBytes: Math.min(doneBytes, ofBytes), ofBytes });
  sayIt();
  return (bytes) => {
    doneBytes += bytes;
    if (performance.now() - saidAt < PROGRESS_MS) return;
    saidAt = performance.now();
    sayIt();
  };
}
