'use client';

import { useQuery } from '@tanstack/react-query';
import Link from 'next/link';
import { type Brought, listBrought } from '../../_lib/api.ts';
import { checkpointPageUrl, startUrl } from '../../_lib/checkpoint-ref.ts';
import {
  formatAgo,
  formatBytes,
  formatCount,
  formatExactBytes,
  formatShortCount,
  formatTime,
} from '../../_lib/format.ts';
import { useNow } from '../../_lib/use-now.ts';
import { useUploads } from '../../_lib/use-uploads.ts';
import { ButtonLink } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';
import { DeleteCheckpoint } from './delete-checkpoint.tsx';
import { DropZone } from './drop-zone.tsx';
import { UploadList } from './upload-list.tsx';

/** The checkpoints that were uploaded, or made of others here, and the way to upload more. */
export function LibraryPage() {
  const { data, error, isPending } = useQuery({
    queryKey: ['brought'],
    queryFn: ({ signal }) => listBrought(signal),
  });
  const { uploads, add, dismiss } = useUploads();
  const now = useNow();
  const checkpoints = data?.checkpoints ?? [];
  return (
    <DropZone onFiles={add} isEmpty={!isPending && !error && checkpoints.length === 0}>
      {(choose) => (
        <>
          <div className="mb-4 flex flex-wrap items-center gap-x-3 gap-y-2">
            <h1 className="text-lg font-semibold tracking-tight">Checkpoints</h1>
            <p className="text-muted">{checkpoints.length ? `${checkpoints.length} uploaded or converted` : ''}</p>
            <div className="ml-auto">{choose}</div>
          </div>
          <p className="-mt-2 mb-4 text-xs text-muted">
            Here are those that were uploaded or converted. What a run saved is on the page of that run, in{' '}
            <Link href="/runs" className="underline underline-offset-2">
              the list of runs
            </Link>
            .
          </p>
          {error ? (
            <div className="mb-3">
              <Notice tone="bad" title="The checkpoints cannot be listed">
                {error.message}
              </Notice>
            </div>
          ) : null}
          <UploadList uploads={uploads} onDismiss={dismiss} />
          {isPending ? <p className="py-20 text-center text-faint">Loading checkpoints…</p> : null}
          {checkpoints.length ? <List checkpoints={checkpoints} now={now} /> : null}
        </>
      )}
    </DropZone>
  );
}

const HEADS = ['Checkpoint', 'Form', 'Step', 'Verified'] as const;

function List({ checkpoints, now }: { checkpoints: readonly Brought[]; now: number | null }) {
  return (
    <div className="panel overflow-hidden">
      <table aria-label="Uploaded checkpoints" className="block w-full md:table">
        <thead className="hidden border-b border-line md:table-header-group">
          <tr className="caps text-left">
            {HEADS.map((head) => (
              <th key={head} scope="col" className="px-2.5 py-2 font-medium first:pl-4">
                {head}
              </th>
            ))}
            {['Parameters', 'Size'].map((head) => (
              <th key={head} scope="col" className="px-2.5 py-2 text-right font-medium">
                {head}
              </th>
            ))}
            <th scope="col" className="py-2 pr-3">
              <span className="sr-only">What to do</span>
            </th>
          </tr>
        </thead>
        <tbody className="block md:table-row-group">
          {checkpoints.map((one) => (
            <Row key={one.name} checkpoint={one} now={now} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ checkpoint, now }: { checkpoint: Brought; now: number | null }) {
  const { name, bytes, broughtAt, verifiedAt, holds, problem } = checkpoint;
  const ref = { runId: null, name };
  const cell = 'px-2.5 py-2 max-md:p-0 md:table-cell';
  return (
    <tr className="relative flex flex-wrap items-center gap-x-2.5 gap-y-1 border-b border-line px-4 py-3 last:border-0 hover:bg-hover md:table-row md:p-0">
      <td className={`${cell} min-w-0 max-md:basis-full md:pl-4`}>
        <Link
          href={checkpointPageUrl(ref)}
          className="block truncate font-mono text-xs font-medium after:absolute after:inset-0 hover:text-accent md:max-w-96"
        >
          {name}
        </Link>
        <p
          className="mt-0.5 truncate text-xs text-faint md:max-w-96"
          title={now === null ? undefined : formatTime(broughtAt)}
        >
          {problem ?? (now === null ? '' : formatAgo(broughtAt, now))}
        </p>
      </td>
      <td className={`${cell} text-xs`}>{holds?.kind ?? '–'}</td>
      <td className={`${cell} text-xs max-md:text-muted`}>
        <span className="md:hidden">step </span>
        {formatCount(holds?.step)}
      </td>
      <td className={cell}>
        <span
          className={`inline-flex items-center gap-1 align-middle text-xs whitespace-nowrap ${verifiedAt ? 'text-good' : problem ? 'text-bad' : 'text-warn'}`}
          title={verifiedAt === null || now === null ? undefined : `Read through, ${formatTime(verifiedAt)}`}
        >
          <Icon name={verifiedAt ? 'check' : 'alert'} className="size-3.5" />
          {verifiedAt ? 'verified' : problem ? 'unreadable' : 'not verified'}
        </span>
      </td>
      <td className={`${cell} text-xs md:text-right`} title={holds ? formatCount(holds.params) : undefined}>
        {holds ? formatShortCount(holds.params) : '–'}
        <span className="md:hidden"> params</span>
      </td>
      <td className={`${cell} text-xs whitespace-nowrap md:text-right`} title={formatExactBytes(bytes)}>
        {formatBytes(bytes)}
      </td>
      <td className={`${cell} max-md:basis-full md:pr-3`}>
        <div className="relative z-10 flex flex-wrap items-center gap-1 max-md:-ml-3 md:justify-end">
          {holds ? (
            <>
              <ButtonLink look="quiet" href={startUrl(ref, 'init')} aria-label={`Start from its weights: ${name}`}>
                Start from its weights
              </ButtonLink>
              {holds.kind === 'safetensors' ? null : (
                <ButtonLink look="quiet" href={startUrl(ref, 'resume')} aria-label={`Resume from ${name}`}>
                  Resume
                </ButtonLink>
              )}
            </>
          ) : null}
          <DeleteCheckpoint name={name} compact />
        </div>
      </td>
    </tr>
  );
}
