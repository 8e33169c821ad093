import type { RunError } from '../../../engine/trainer/events.ts';
import type { Run } from '../../../server/contract.ts';
import { formatBytes } from '../../_lib/format.ts';
import { stepName } from '../../_lib/step-words.ts';
import { ButtonLink } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';

const WAYS_OUT: Readonly<Record<string, string>> = {
  'out-of-memory':
    'Clone it and shard over more ranks, make batch or model smaller, or raise memoryBudgetMiB: the form shows at once what would fit.',
  'worker-died':
    'The process of a rank ended by itself. Its last lines are in the log below. Clone the run to try again; checkpoints that were saved are whole.',
  'peer-lost':
    'A rank stopped answering, and the others did not wait for it. Clone the run to try again; checkpoints that were saved are whole.',
  'device-lost':
    'The adapter went away, by its driver’s choice or another program’s. Clone the run to try again, or choose another adapter.',
  'no-adapter': 'Clone it with the adapter “interpreter”, or install a Vulkan driver (Mesa’s lavapipe will do).',
  'non-finite': 'The loss left the finite numbers. Clone it with a smaller learning rate.',
  timeout: 'Something took longer than its bound. The log below says what was waited for.',
  io: 'Look at the folder named above: its space and its permissions. Then clone the run.',
  'bad-file': 'Choose another file in a clone of this run.',
  'bad-data': 'Choose another file in a clone of this run.',
  'not-found': 'Choose another file in a clone of this run.',
  'refused-global':
    'Reading that file the usual way would let it run programs. Nothing of it was executed. Have it saved again as .safetensors, or choose another.',
};

/** Why a run failed, where, and the way out. */
export function ErrorPanel({ run, error }: { run: Run; error: RunError }) {
  const where = [error.rank === null ? '' : `rank ${error.rank}`, error.step === null ? '' : stepName(error.step)]
    .filter(Boolean)
    .join(', ');
  return (
    <Notice
      tone="bad"
      title={`Failed${where ? ` at ${where}` : ''}: ${error.code}`}
      action={
        <ButtonLink href={`/runs/new?from=${encodeURIComponent(run.id)}`} look="primary">
          <Icon name="clone" className="size-3.5" />
          Change and run again
        </ButtonLink>
      }
    >
      <p className="text-ink">{error.message}</p>
      {error.code === 'out-of-memory' && run.predicted ? (
        <p className="mt-1">Predicted: {formatBytes(run.predicted.peakBytes)} reserved on the fullest rank.</p>
      ) : null}
      {WAYS_OUT[error.code] ? <p className="mt-1">{WAYS_OUT[error.code]}</p> : null}
    </Notice>
  );
}
