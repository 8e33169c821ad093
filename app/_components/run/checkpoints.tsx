import Link from 'next/link';
import type { Run } from '../../../server/contract.ts';
import { checkpointPageUrl, startUrl } from '../../_lib/checkpoint-ref.ts';
import { formatBytes, formatExactBytes } from '../../_lib/format.ts';
import { afterSteps } from '../../_lib/step-words.ts';
import { CheckpointDownloads } from '../checkpoint/checkpoint-downloads.tsx';
import { ButtonLink } from '../ui/button.tsx';
import { CopyButton } from '../ui/copy-button.tsx';
import { Icon } from '../ui/icon.tsx';

/** What the run saved: size, digest, download. */
export function Checkpoints({ run }: { run: Run }) {
  return (
    <section className="panel p-4 sm:p-5" aria-label="Checkpoints">
      <div className="flex flex-wrap items-baseline gap-x-2.5">
        <h2 className="font-semibold">Checkpoints</h2>
        <p className="text-xs text-faint">
          Read a file with <code className="font-mono">torch.load(path, weights_only=True)</code>, a folder with{' '}
          <code className="font-mono">fabric.load</code>
        </p>
      </div>
      {run.checkpoints.length ? (
        <ul className="mt-2 divide-y divide-line">
          {[...run.checkpoints]
            .sort((a, b) => b.step - a.step)
            .map((checkpoint) => (
              <li key={checkpoint.name} className="flex flex-wrap items-center gap-x-4 gap-y-1 py-2">
                <div className="min-w-0 flex-1 basis-52">
                  <Link
                    href={checkpointPageUrl({ runId: run.id, name: checkpoint.name })}
                    className="truncate font-mono text-xs font-medium underline decoration-line-strong underline-offset-2 hover:decoration-current"
                  >
                    {checkpoint.name}
                  </Link>
                  <p className="text-xs text-faint">
                    {afterSteps(checkpoint.step)} · {checkpoint.format} ·{' '}
                    <span title={formatExactBytes(checkpoint.bytes)}>{formatBytes(checkpoint.bytes)}</span>
                  </p>
                </div>
                <span className="flex min-w-0 items-center gap-1 text-xs text-muted">
                  <span className="caps">sha256</span>
                  <code className="max-w-44 truncate font-mono" title={checkpoint.sha256}>
                    {checkpoint.sha256}
                  </code>
                  <CopyButton text={checkpoint.sha256} label={`Copy the SHA-256 of ${checkpoint.name}`} compact />
                </span>
                <span className="flex flex-wrap gap-2">
                  <CheckpointDownloads checkpoint={{ runId: run.id, name: checkpoint.name }} kind={checkpoint.format} />
                  {checkpoint.format === 'safetensors' ? null : (
                    <ButtonLink
                      look="quiet"
                      href={startUrl({ runId: run.id, name: checkpoint.name }, 'resume')}
                      title="A new run that resumes from here, under any strategy"
                      aria-label={`Resume from ${checkpoint.name}`}
                    >
                      <Icon name="arrow" className="size-3.5" />
                      Resume
                    </ButtonLink>
                  )}
                </span>
              </li>
            ))}
        </ul>
      ) : (
        <p className="mt-2 text-muted">None yet.</p>
      )}
    </section>
  );
}
