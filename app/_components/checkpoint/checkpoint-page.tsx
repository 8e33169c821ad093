'use client';

import { useQuery } from '@tanstack/react-query';
import Link from 'next/link';
import { useRouter } from 'next/navigation';
import { useDeferredValue, useState } from 'react';
import { counted } from '../../../engine/counted.ts';
import type { CheckpointDetails } from '../../../server/contract.ts';
import { getCheckpoint, getRun } from '../../_lib/api.ts';
import { type CheckpointRef, listUrl, startUrl } from '../../_lib/checkpoint-ref.ts';
import { toYaml } from '../../_lib/config-draft.ts';
import { formatBytes, formatCount, formatExactBytes } from '../../_lib/format.ts';
import { afterSteps } from '../../_lib/step-words.ts';
import { ButtonLink } from '../ui/button.tsx';
import { ConfigPanel } from '../ui/config-panel.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';
import { ScrollRegion } from '../ui/scroll-region.tsx';
import { CheckpointDownloads } from './checkpoint-downloads.tsx';
import { ConvertPanel } from './convert-panel.tsx';
import { DeleteCheckpoint } from './delete-checkpoint.tsx';
import { FilesPanel } from './files-panel.tsx';
import { SamplePanel } from './sample-panel.tsx';
import { TensorList } from './tensor-list.tsx';

/**
 * What one checkpoint holds, whether a run saved it or a person brought it: its files, which can be verified, its tensors with
 * who wrote what, its optimizer and config; and what can be made of it.
 */
export function CheckpointPage({ checkpoint }: { checkpoint: CheckpointRef }) {
  const { runId } = checkpoint;
  const { data, error } = useQuery({
    queryKey: ['checkpoint', checkpoint],
    queryFn: ({ signal }) => getCheckpoint(checkpoint, signal),
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });
  const run = useQuery({
    queryKey: ['run', runId],
    queryFn: ({ signal }) => getRun(String(runId), signal),
    enabled: runId !== null,
  });
  if (error)
    return (
      <Notice
        tone="bad"
        page
        title="The checkpoint cannot be shown"
        action={<ButtonLink href={listUrl(checkpoint)}>{runId === null ? 'All checkpoints' : 'The run'}</ButtonLink>}
      >
        {error.message}
      </Notice>
    );
  if (!data) return <p className="py-20 text-center text-faint">Looking at the checkpoint…</p>;
  const config = runId === null ? data.config : run.data?.config;
  return (
    <div className="space-y-4">
      <Header checkpoint={checkpoint} from={run.data?.name ?? runId} details={data} />
      <div className="grid items-start gap-4 lg:grid-cols-2">
        <FilesPanel checkpoint={checkpoint} files={data.files} />
        <ConvertPanel checkpoint={checkpoint} details={data} />
      </div>
      {config === undefined ? null : <SamplePanel checkpoint={checkpoint} config={config} />}
      <Tensors checkpoint={checkpoint} details={data} />
      <div className={`grid items-start gap-4 ${data.config == null ? '' : 'lg:grid-cols-2'}`}>
        <Optimizers details={data} />
        {data.config == null ? null : <ConfigPanel config={data.config} height="max-h-96" />}
      </div>
    </div>
  );
}

/** `from`: the run that saved it, by name; null for one that was brought. */
function Header(props: { checkpoint: CheckpointRef; from: string | null; details: CheckpointDetails }) {
  const { checkpoint, from, details } = props;
  const { kind, step, bytes, params, tensorCount, files, samples } = details;
  const router = useRouter();
  const done = step === null ? null : afterSteps(step);
  const seen = samples === null ? '' : `, ${formatCount(samples)} samples seen`;
  return (
    <header className="panel flex flex-wrap items-start gap-3 p-4 sm:p-5">
      <div className="min-w-0 flex-1 basis-64">
        <h1 className="truncate font-mono text-base font-semibold" title={checkpoint.name}>
          {checkpoint.name}
        </h1>
        <p className="mt-1 text-muted">
          {from === null ? (
            <>
              {done ? `${done}${seen}, ` : ''}one of the{' '}
              <Link href={listUrl(checkpoint)} className="underline underline-offset-2">
                uploaded checkpoints
              </Link>
            </>
          ) : (
            <>
              {done} of{' '}
              <Link href={listUrl(checkpoint)} className="underline underline-offset-2">
                {from}
              </Link>
              {seen}
            </>
          )}
        </p>
        <p className="mt-1 text-xs text-faint">
          {kind} · <span title={formatExactBytes(bytes)}>{formatBytes(bytes)}</span> in{' '}
          {files.length === 1 ? 'one file' : `${files.length} files`} · {formatCount(params)} parameters ·{' '}
          {counted(tensorCount, 'tensor')}
        </p>
      </div>
      <div className="flex flex-wrap gap-2">
        <CheckpointDownloads checkpoint={checkpoint} kind={kind} />
        {from === null ? (
          <DeleteCheckpoint name={checkpoint.name} onDeleted={() => router.push(listUrl(checkpoint))} />
        ) : null}
        <ButtonLink
          look={kind === 'safetensors' ? 'primary' : 'plain'}
          href={startUrl(checkpoint, 'init')}
          title="A new run whose weights begin as these; its optimizer begins afresh"
        >
          Start from its weights
        </ButtonLink>
        {kind === 'safetensors' ? null : (
          <ButtonLink
            look="primary"
            href={startUrl(checkpoint, 'resume')}
            title="A new run that resumes from here, under any strategy"
          >
            <Icon name="arrow" className="size-3.5" />
            Resume
          </ButtonLink>
        )}
      </div>
    </header>
  );
}

function Tensors({ checkpoint, details }: { checkpoint: CheckpointRef; details: CheckpointDetails }) {
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
            : details.tensors.length < details.tensorCount
              ? `The first ${formatCount(details.tensors.length)}; open one for its values`
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
      <TensorList checkpoint={checkpoint} tensors={shown} />
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
