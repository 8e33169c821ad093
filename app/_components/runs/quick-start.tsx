'use client';

import { useMutation } from '@tanstack/react-query';
import { useRouter } from 'next/navigation';
import { quickStart } from '../../_lib/api.ts';
import { PredictedPair } from '../prediction/predicted-pair.tsx';
import { Button, ButtonLink } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';

function useQuickStart() {
  const router = useRouter();
  return useMutation({
    mutationFn: quickStart,
    onSuccess: ({ runs }) => router.push(`/compare?ids=${runs.map(({ id }) => encodeURIComponent(id)).join(',')}`),
  });
}

/** The first thing that a person sees: the question, one click to the answer, and the answer as predicted. */
export function QuickStart() {
  const start = useQuickStart();
  return (
    <div className="mx-auto max-w-5xl pt-6 sm:pt-12">
      <div className="grid items-center gap-8 lg:grid-cols-[minmax(0,1.05fr)_minmax(0,1fr)] lg:gap-12">
        <div className="min-w-0">
          <h1 className="text-3xl/9 font-semibold tracking-tight text-balance sm:text-4xl/11">
            What does each way of sharding cost?
          </h1>
          <p className="mt-4 max-w-prose text-base text-muted">
            Train one small Transformer on Moby-Dick twice, on two ranks: once with every rank holding the whole model
            (DDP), once with the model cut into shards (FULL_SHARD). Same losses to the last bit; different memory and
            time. Watch both live.
          </p>
          <div className="mt-6 flex flex-wrap gap-2.5">
            <Button
              look="primary"
              size="lg"
              onClick={() => start.mutate()}
              disabled={start.isPending || start.isSuccess}
            >
              <Icon name="bolt" />
              {start.isPending || start.isSuccess ? 'Starting…' : 'Run the comparison'}
            </Button>
            <ButtonLink href="/runs/new" size="lg">
              <Icon name="plus" />
              New run
            </ButtonLink>
          </div>
          {start.error ? (
            <div className="mt-4">
              <Notice tone="bad" title="The comparison did not start">
                {start.error.message}
              </Notice>
            </div>
          ) : null}
        </div>
        <PredictedPair />
      </div>
      <ol className="mt-12 grid gap-px overflow-hidden rounded-[10px] border border-line bg-line sm:grid-cols-3">
        {[
          [
            'Predict',
            'A run is compiled to a schedule before it starts. Its memory is known to the byte, by category, as you type.',
          ],
          [
            'Train',
            'One process for each rank, on WebGPU: a real GPU where there is one, a software one where there is none.',
          ],
          ['Keep', 'Checkpoints that torch.load takes, with their SHA-256. Comparisons as a table, as bars, as CSV.'],
        ].map(([title, text]) => (
          <li key={title} className="bg-panel p-5">
            <h2 className="font-semibold">{title}</h2>
            <p className="mt-1 text-muted">{text}</p>
          </li>
        ))}
      </ol>
    </div>
  );
}

/** The quick start again, for a list that is no longer empty. */
export function QuickStartButton() {
  const start = useQuickStart();
  return (
    <Button
      onClick={() => start.mutate()}
      disabled={start.isPending || start.isSuccess}
      title={start.error?.message ?? 'DDP and FULL_SHARD on the default corpus, side by side'}
    >
      <Icon name={start.error ? 'alert' : 'bolt'} className="size-3.5" />
      {start.error ? 'Quick start failed' : 'Quick start'}
    </Button>
  );
}
