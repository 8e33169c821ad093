import { conversionBytes } from '../../engine/checkpoint/convert-checkpoint.ts';
import { convertCheckpointPath } from '../../engine/node/checkpoint-convert.ts';
import { openCheckpointPath } from '../../engine/node/checkpoint-path.ts';
import { verifyCheckpoint } from '../../engine/node/checkpoint-verify.ts';
import { naming } from '../../engine/node/file-bytes.ts';
import { answerServer, say, told } from '../children/child-side.ts';
import { checkpointBytes } from '../runs/checkpoint-files.ts';
import type { CheckpointTask, CheckpointTaskLine } from './checkpoint-task.ts';

/**
 * The process that reads a whole checkpoint for the studio: apart, so that neither its work nor its memory is the
 * server's. It is told one task, says how far it is, and ends.
 */
answerServer((task) => workOn(task as CheckpointTask));

const PROGRESS_MS = 100;

async function workOn(task: CheckpointTask): Promise<void> {
  const tell = (line: CheckpointTaskLine) => say(line);
  try {
    await tell(task.action === 'verify' ? await verify(task, tell) : await convert(task, tell));
  } catch (error) {
    await tell({ type: 'failed', error: told(error, 'Reading the checkpoint') });
  }
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
