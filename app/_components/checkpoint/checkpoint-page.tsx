'use client';

import { useQuery } from '@tanstack/react-query';
import Link from 'next/link';
import { useDeferredValue, useState } from 'react';
import { counted } from '../../../engine/counted.ts';
import type { CheckpointDetails } from '../../../server/contract.ts';
import { getCheckpoint, getRun } from '../../_lib/api.ts';
import { toYaml } from '../../_lib/config-draft.ts';
import { continueUrl } from '../../_lib/continue-url.ts';
import { formatBytes, formatCount, formatExactBytes } from '../../_lib/format.ts';
import { ButtonLink } from '../ui/button.tsx';
import { ConfigPanel } from '../ui/config-panel.tsx';
import { CopyButton } from '../ui/copy-button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';
import { ScrollRegion } from '../ui/scroll-region.tsx';
import { CheckpointDownloads } from './checkpoint-downloads.tsx';
import { SamplePanel } from './sample-panel.tsx';
import { TensorList } from './tensor-list.tsx';

/** What one checkpoint holds: its tensors with who wrote what, its optimizer, its config and the digests of its files. */
export function CheckpointPage({ runId, name }: { runId: string; name: string }) {
  const { data, error } = useQuery({
    queryKey: ['checkpoint', runId, name],
    queryFn: ({ signal }) => getCheckpoint(runId, name, signal),
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });
  const run = useQuery({ queryKey: ['run', runId], queryFn: ({ signal }) => getRun(runId, signal) });
  if (error)
    return (
      <Notice
        tone="bad"
        page
        title="The checkpoint cannot be shown"
        action={<ButtonLink href={`/runs/${encodeURIComponent(runId)}`}>The run</ButtonLink>}
      >
        {error.message}
      </Notice>
    );
  if (!data) return <p className="py-20 text-center text-faint">Looking at the checkpoint…</p>;
  return (
    <div className="space-y-4">
      <Header runId={runId} runName={run.data?.name ?? runId} name={name} details={data} />
      {run.data ? <SamplePanel runId={runId} name={name} config={run.data.config} /> : null}
      <Tensors runId={runId} name={name} details={data} />
      <div className="grid gap-4 lg:grid-cols-2">
        <Files details={data} />
        <Optimizers details={data} />
      </div>
      {data.config == null ? null : <ConfigPanel config={data.config} height="max-h-96" />}
    </div>
  );
}

function Header(props: { runId: string; runName: string; name: string; details: CheckpointDetails }) {
  const { runId, runName, name, details } = props;
  const { kind, step, bytes, params, tensors, files, samples } = details;
  return (
    <header className="panel flex flex-wrap items-start gap-3 p-4 sm:p-5">
      <div className="min-w-0 flex-1 basis-64">
        <h1 className="truncate font-mono text-base font-semibold">{name}</h1>
        <p className="mt-1 text-muted">
          after {step === 1 ? 'one step' : `${formatCount(step)} steps`} of{' '}
          <Link href={`/runs/${encodeURIComponent(runId)}`} className="underline underline-offset-2">
            {runName}
          </Link>
          {samples === null ? '' : `, ${formatCount(samples)} samples seen`}
        </p>
        <p className="mt-1 text-xs text-faint">
          {kind} · <span title={formatExactBytes(bytes)}>{formatBytes(bytes)}</span> in{' '}
          {files.length === 1 ? 'one file' : `${files.length} files`} · {formatCount(params)} parameters ·{' '}
          {counted(tensors.length, 'tensor')}
        </p>
      </div>
      <div className="flex flex-wrap gap-2">
        <CheckpointDownloads runId={runId} name={name} format={kind} />
        {kind === 'safetensors' ? null : (
          <ButtonLink look="primary" href={continueUrl(runId, `runs/${runId}/checkpoints/${name}`)}>
            <Icon name="arrow" className="size-3.5" />
            Continue with another strategy
          </ButtonLink>
        )}
      </div>
    </header>
  );
}

function Tensors({ runId, name, details }: { runId: string; name: string; details: CheckpointDetails }) {
  const [wanted, setWanted] = useState('');
  const filter = useDeferredValue(wanted.trim().toLowerCase());
  const shown = details.tensors.filter((tensor) => tensor.name.toLowerCase().includes(filter));
  return (
    <section className="panel min-w-0 p-4 sm:p-5" aria-label="Tensors">
      <div className="mb-3 flex flex-wrap items-center gap-x-3 gap-y-2">
        <h2 className="font-semibold">Tensors</h2>
        <p className="text-xs text-faint">
          {filter
            ? `${formatCount(shown.length)} of ${formatCount(details.tensors.length)}`
            : 'Open one for its values'}
        </p>
        <input
          type="search"
          aria-label="Filter tensors by name"
          placeholder="filter by name"
          className="field-box ml-auto max-w-56 font-mono text-xs"
          value={wanted}
          onChange={(e) => setWanted(e.target.value)}
        />
      </div>
      <TensorList runId={runId} name={name} tensors={shown} />
    </section>
  );
}

function Files({ details }: { details: CheckpointDetails }) {
  return (
    <section className="panel min-w-0 p-4 sm:p-5" aria-label="Files">
      <h2 className="font-semibold">Files</h2>
      <ul className="mt-2 divide-y divide-line">
        {details.files.map(({ name, bytes, sha256 }) => (
          <li key={name} className="flex flex-wrap items-center gap-x-3 gap-y-1 py-2 text-xs">
            <span className="min-w-0 flex-1 basis-36 truncate font-mono font-medium">{name}</span>
            <span className="text-muted" title={formatExactBytes(bytes)}>
              {formatBytes(bytes)}
            </span>
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
          </li>
        ))}
      </ul>
    </section>
  );
}

function Optimizers({ details }: { details: CheckpointDetails }) {
  return (
    <section className="panel min-w-0 p-4 sm:p-5" aria-label="Optimizer">
      <h2 className="font-semibold">Optimizer</h2>
      {details.optimizers.length ? null : <p className="mt-2 text-muted">None: these are weights alone.</p>}
      {details.optimizers.map(({ key, parameters, groups }) => (
        <div key={key} className="mt-2">
          <p className="text-muted">
            <code className="font-mono text-xs">{key}</code>: state of {formatCount(parameters)} parameters
          </p>
          {groups.map((group, i) => (
            <ScrollRegion
              // biome-ignore lint/suspicious/noArrayIndexKey: groups have no other name, and never change here
              key={i}
              label={`Options of group ${i}`}
              className="mt-2 max-h-56 rounded-lg bg-sunken p-3"
            >
              <p className="mb-1 text-xs text-faint">
                group {i}, {formatCount(group.parameters)} parameters
              </p>
              <pre className="font-mono text-xs/5">{toYaml(group.options)}</pre>
            </ScrollRegion>
          ))}
        </div>
      ))}
    </section>
  );
}
