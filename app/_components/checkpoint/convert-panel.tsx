'use client';

import { useQueryClient } from '@tanstack/react-query';
import Link from 'next/link';
import { useId, useState } from 'react';
import type { CheckpointDetails, CheckpointKind, ConvertBody, ConvertLine } from '../../../server/contract.ts';
import { convertCheckpoint } from '../../_lib/api.ts';
import { type CheckpointRef, checkpointPageUrl } from '../../_lib/checkpoint-ref.ts';
import { formatBytes } from '../../_lib/format.ts';
import { type LinesState, useLines } from '../../_lib/use-lines.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';
import { Segmented } from '../ui/segmented.tsx';
import { CheckpointDownloads } from './checkpoint-downloads.tsx';
import { WorkProgress } from './work-progress.tsx';

const FORMS: readonly { readonly value: CheckpointKind; readonly label: string; readonly about: string }[] = [
  { value: 'full', label: '.ckpt', about: 'One file with everything, as torch.save writes it: torch.load reads it.' },
  { value: 'safetensors', label: '.safetensors', about: 'The weights alone, in one file that any tool reads.' },
  { value: 'sharded', label: 'Folder', about: 'One file a rank, as Fabric writes a sharded checkpoint.' },
];

/** Writes the checkpoint in another form, beside those that were brought. */
export function ConvertPanel({ checkpoint, details }: { checkpoint: CheckpointRef; details: CheckpointDetails }) {
  const client = useQueryClient();
  const [kind, setKind] = useState<CheckpointKind>(details.kind === 'sharded' ? 'full' : 'sharded');
  const [ranks, setRanks] = useState('2');
  const [name, setName] = useState('');
  const { state, start, cancel } = useLines<ConvertLine, ConvertBody>((request, onLine) =>
    convertCheckpoint({ checkpoint, ...request }, onLine),
  );
  const id = useId();
  const isCount = /^\s*\d+\s*$/.test(ranks) && Number(ranks) >= 1 && Number(ranks) <= 1024;
  const problem = kind === 'sharded' && !isCount ? 'a whole number from 1 to 1,024' : null;
  return (
    <section className="panel min-w-0 p-4 sm:p-5" aria-label="Convert">
      <div className="flex min-h-8 flex-wrap items-center gap-x-3">
        <h2 className="font-semibold">Convert</h2>
        <p className="text-xs text-faint">The new one stands among the uploaded checkpoints; this one stays</p>
      </div>
      <form
        noValidate
        className="mt-3 space-y-3"
        onSubmit={(event) => {
          event.preventDefault();
          if (problem || state?.going) return;
          const wanted = { kind, ranks: kind === 'sharded' ? Number(ranks) : null, name: name.trim() || null };
          void start(wanted).then(() => client.invalidateQueries({ queryKey: ['brought'] }));
        }}
      >
        <div>
          <Segmented label="As" segments={FORMS} value={kind} onChange={setKind} />
          <p className="mt-1 text-xs text-faint">{FORMS.find(({ value }) => value === kind)?.about}</p>
        </div>
        <div className="grid gap-3 sm:grid-cols-[7rem_minmax(0,1fr)_auto] sm:items-end">
          {kind === 'sharded' ? (
            <div>
              <label htmlFor={`${id}-ranks`} className="mb-1 block font-medium">
                Ranks
              </label>
              <input
                id={`${id}-ranks`}
                className="field-box"
                inputMode="numeric"
                autoComplete="off"
                value={ranks}
                aria-invalid={problem ? true : undefined}
                aria-describedby={problem ? `${id}-problem` : undefined}
                onChange={(e) => setRanks(e.target.value)}
              />
            </div>
          ) : null}
          <div className={kind === 'sharded' ? '' : 'sm:col-span-2'}>
            <label htmlFor={`${id}-name`} className="mb-1 block font-medium">
              Name
            </label>
            <input
              id={`${id}-name`}
              className="field-box"
              autoComplete="off"
              spellCheck={false}
              maxLength={60}
              placeholder="as this one"
              value={name}
              onChange={(e) => setName(e.target.value)}
            />
          </div>
          {state?.going ? (
            <Button onClick={cancel}>Cancel</Button>
          ) : (
            <Button type="submit" disabled={problem !== null}>
              <Icon name="clone" className="size-3.5" />
              Convert
            </Button>
          )}
        </div>
        {problem ? (
          <p id={`${id}-problem`} className="text-xs text-bad">
            Ranks: {problem}
          </p>
        ) : null}
      </form>
      {state?.going ? <WorkProgress label="Converting" progress={state.progress} /> : null}
      <Outcome state={state} />
    </section>
  );
}

function Outcome({ state }: { state: LinesState<ConvertLine> | null }) {
  const last = state?.said.at(-1);
  const problem = state?.problem ?? (last?.type === 'failed' ? last.error.message : null);
  if (problem)
    return (
      <div className="mt-3">
        <Notice tone="bad" title="It was not converted">
          {problem}
        </Notice>
      </div>
    );
  if (last?.type !== 'converted') return null;
  const { checkpoint, dropped } = last;
  const made = { runId: null, name: checkpoint.name };
  return (
    <div role="status" className="mt-3 rounded-lg border border-line bg-sunken p-3">
      <div className="flex flex-wrap items-center gap-x-3 gap-y-2">
        <span className="flex min-w-0 flex-1 basis-40 items-center gap-1.5">
          <Icon name="check" className="size-3.5 text-good" />
          <Link
            href={checkpointPageUrl(made)}
            className="truncate font-mono text-xs font-medium underline decoration-line-strong underline-offset-2 hover:decoration-current"
          >
            {checkpoint.name}
          </Link>
          <span className="text-xs whitespace-nowrap text-muted">{formatBytes(checkpoint.bytes)}</span>
        </span>
        {checkpoint.holds ? <CheckpointDownloads checkpoint={made} kind={checkpoint.holds.kind} only /> : null}
      </div>
      {dropped.length ? (
        <p className="mt-1.5 text-xs text-muted">This form has no room for: {dropped.join(', ')}</p>
      ) : null}
    </div>
  );
}
