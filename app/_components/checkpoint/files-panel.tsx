'use client';

import type { CheckpointDetails, VerifyLine } from '../../../server/contract.ts';
import { verifyCheckpoint } from '../../_lib/api.ts';
import type { CheckpointRef } from '../../_lib/checkpoint-ref.ts';
import { formatBytes, formatExactBytes } from '../../_lib/format.ts';
import { type LinesState, useLines } from '../../_lib/use-lines.ts';
import { Button } from '../ui/button.tsx';
import { CopyButton } from '../ui/copy-button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';
import { WorkProgress } from './work-progress.tsx';

type Verdict = Extract<VerifyLine, { type: 'file' }>;

/** The files of a checkpoint with their digests, and all of them read again on request. */
export function FilesPanel({ checkpoint, files }: { checkpoint: CheckpointRef; files: CheckpointDetails['files'] }) {
  const { state, start, cancel } = useLines<VerifyLine, object>((request, onLine) =>
    verifyCheckpoint({ checkpoint, ...request }, onLine),
  );
  const verdicts = new Map((state?.said ?? []).flatMap((line) => (line.type === 'file' ? [[line.name, line]] : [])));
  const known = new Set(files.map(({ name }) => name));
  // What is on the list of digests and not there, or there and not on it, is a file too.
  const others = [...verdicts.values()].filter(({ name }) => !known.has(name));
  const rows = [...files, ...others.map(({ name }) => ({ name, bytes: null, sha256: null }))];
  return (
    <section className="panel min-w-0 p-4 sm:p-5" aria-label="Files">
      <div className="flex min-h-8 flex-wrap items-center gap-x-3 gap-y-2">
        <h2 className="font-semibold">Files</h2>
        <p className="text-xs text-faint">{state ? '' : 'Verify reads every byte again'}</p>
        <div className="ml-auto">
          {state?.going ? (
            <Button onClick={cancel}>Cancel</Button>
          ) : (
            <Button onClick={() => void start({})}>
              <Icon name="check" className="size-3.5" />
              Verify
            </Button>
          )}
        </div>
      </div>
      {state?.going ? <WorkProgress label="Verifying" progress={state.progress} /> : null}
      <ul className="mt-2 divide-y divide-line">
        {rows.map((file) => (
          <FileRow key={file.name} {...file} verdict={verdicts.get(file.name) ?? null} />
        ))}
      </ul>
      <Verdicts state={state} />
    </section>
  );
}

function FileRow(props: { name: string; bytes: number | null; sha256: string | null; verdict: Verdict | null }) {
  const { name, bytes, sha256, verdict } = props;
  return (
    <li className="py-2 text-xs">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-1">
        <span className="flex min-w-0 flex-1 basis-36 items-center gap-1.5">
          {verdict ? (
            <span className={verdict.problem ? 'text-bad' : 'text-good'}>
              <Icon name={verdict.problem ? 'close' : 'check'} className="size-3.5" />
              <span className="sr-only">{verdict.problem ? 'damaged: ' : 'verified: '}</span>
            </span>
          ) : null}
          <span className="truncate font-mono font-medium">{name}</span>
        </span>
        {bytes === null ? null : (
          <span className="text-muted" title={formatExactBytes(bytes)}>
            {formatBytes(bytes)}
          </span>
        )}
        {sha256 === null ? (
          <span className="text-faint">no digest</span>
        ) : (
          <span className="flex min-w-0 items-center gap-1 text-muted">
            <code className="max-w-40 truncate font-mono" title={sha256}>
              {sha256}
            </code>
            <CopyButton text={sha256} label={`Copy the SHA-256 of ${name}`} compact />
          </span>
        )}
      </div>
      {verdict?.problem ? <p className="mt-1 text-bad">{verdict.problem.message}</p> : null}
    </li>
  );
}

/** What came of it all. */
function Verdicts({ state }: { state: LinesState<VerifyLine> | null }) {
  const last = state?.said.at(-1);
  if (state?.problem)
    return (
      <Notice tone="warn" title="It was not verified">
        {state.problem}
      </Notice>
    );
  if (last?.type === 'failed')
    return (
      <Notice tone="bad" title={last.error.code === 'bad-file' ? 'This checkpoint is damaged' : 'It is not whole'}>
        {last.error.message}
      </Notice>
    );
  if (last?.type !== 'verified') return null;
  return (
    <p role="status" className="mt-2 flex items-center gap-1.5 text-good">
      <Icon name="check" className="size-3.5" />
      {last.digests
        ? 'Verified: every file is what its SHA-256 says.'
        : 'Verified by what its format has to check; no SHA-256 is beside it.'}
    </p>
  );
}
