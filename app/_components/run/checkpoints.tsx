import type { Run } from '../../../server/contract.ts';
import { checkpointUrl } from '../../_lib/api.ts';
import { formatBytes, formatCount, formatExactBytes } from '../../_lib/format.ts';
import { buttonClass } from '../ui/button.tsx';
import { CopyButton } from '../ui/copy-button.tsx';
import { Icon } from '../ui/icon.tsx';

/** What the run saved: size, digest, download. */
export function Checkpoints({ run }: { run: Run }) {
  return (
    <section className="panel p-4 sm:p-5" aria-label="Checkpoints">
      <div className="flex flex-wrap items-baseline gap-x-2.5">
        <h2 className="font-semibold">Checkpoints</h2>
        <p className="text-xs text-faint">
          Read one with <code className="font-mono">torch.load(path, weights_only=True)</code>
        </p>
      </div>
      {run.checkpoints.length ? (
        <ul className="mt-2 divide-y divide-line">
          {[...run.checkpoints]
            .sort((a, b) => b.step - a.step)
            .map((checkpoint) => (
              <li key={checkpoint.name} className="flex flex-wrap items-center gap-x-4 gap-y-1 py-2">
                <div className="min-w-0 flex-1 basis-52">
                  <p className="truncate font-mono text-xs font-medium">{checkpoint.name}</p>
                  <p className="text-xs text-faint">
                    step {formatCount(checkpoint.step)} · {checkpoint.format} ·{' '}
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
                <a
                  href={checkpointUrl(run.id, checkpoint.name)}
                  download={checkpoint.name}
                  className={buttonClass('plain')}
                  aria-label={`Download ${checkpoint.name}`}
                >
                  <Icon name="download" className="size-3.5" />
                  Download
                </a>
              </li>
            ))}
        </ul>
      ) : (
        <p className="mt-2 text-muted">None yet.</p>
      )}
    </section>
  );
}
