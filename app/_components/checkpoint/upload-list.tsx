import Link from 'next/link';
import { checkpointPageUrl } from '../../_lib/checkpoint-ref.ts';
import { formatBytes } from '../../_lib/format.ts';
import type { CheckpointUpload } from '../../_lib/use-uploads.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { ProgressBar } from '../ui/progress-bar.tsx';

/** The checkpoints on their way: how far each is, and what became of it. */
export function UploadList(props: { uploads: readonly CheckpointUpload[]; onDismiss: (id: number) => void }) {
  if (!props.uploads.length) return null;
  return (
    <ul aria-label="Uploads" className="panel mb-4 divide-y divide-line px-4">
      {props.uploads.map((upload) => (
        <UploadRow key={upload.id} upload={upload} onDismiss={() => props.onDismiss(upload.id)} />
      ))}
    </ul>
  );
}

function UploadRow({ upload, onDismiss }: { upload: CheckpointUpload; onDismiss: () => void }) {
  const { name, bytes, sentBytes, phase, said } = upload;
  const ended = phase === 'done' || phase === 'failed';
  return (
    <li className="flex flex-wrap items-center gap-x-3 gap-y-1 py-2">
      <span className="min-w-0 flex-1 basis-44 truncate font-mono text-xs font-medium" title={name}>
        {name}
      </span>
      {phase === 'failed' ? null : (
        <div className="order-last flex min-w-0 basis-full items-center gap-2 sm:order-none sm:flex-1 sm:basis-64">
          {phase === 'done' ? (
            <p role="status" className="flex min-w-0 items-center gap-1.5 text-good">
              <Icon name="check" className="size-3.5" />
              <span className="min-w-0 truncate">
                Verified, as{' '}
                <Link href={checkpointPageUrl({ runId: null, name: said })} className="underline underline-offset-2">
                  {said}
                </Link>
              </span>
            </p>
          ) : (
            <>
              <ProgressBar
                label={`Upload of ${name}`}
                value={sentBytes}
                max={phase === 'verifying' ? null : bytes}
                text={wordOf(phase)}
              />
              <span role="status" className="min-w-24 text-right text-xs whitespace-nowrap text-muted">
                {phase === 'sending' ? `${Math.floor((sentBytes / bytes) * 100)} % sent` : wordOf(phase)}
              </span>
            </>
          )}
        </div>
      )}
      <span className="min-w-16 text-right text-xs whitespace-nowrap text-muted">{formatBytes(bytes)}</span>
      <Button
        look="quiet"
        size="icon"
        onClick={onDismiss}
        aria-label={ended ? `Dismiss ${name}` : `Cancel the upload of ${name}`}
        title={ended ? 'Dismiss' : 'Cancel'}
      >
        <Icon name="close" className="size-3.5" />
      </Button>
      {phase === 'failed' ? (
        <p role="alert" className="order-last flex basis-full gap-1.5 text-bad">
          <Icon name="alert" className="mt-0.5 size-3.5" />
          <span className="min-w-0 break-words whitespace-pre-line">{said}</span>
        </p>
      ) : null}
    </li>
  );
}

const wordOf = (phase: CheckpointUpload['phase']) =>
  phase === 'verifying' ? 'being verified…' : phase === 'waiting' ? 'waiting' : 'being sent';
