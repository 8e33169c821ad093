'use client';

import { useQuery } from '@tanstack/react-query';
import { useMemo } from 'react';
import { quickStartConfigs } from '../../../engine/quick-start.ts';
import { builtInProfiles } from '../../../engine/schedule/profile.ts';
import { getCorpus } from '../../_lib/api.ts';
import { CATEGORY_LOOKS } from '../../_lib/categories.ts';
import { formatBytes } from '../../_lib/format.ts';
import { usePredictions } from '../../_lib/use-predictions.ts';
import { Dot } from '../ui/segmented.tsx';
import { MemoryTimeline } from './memory-timeline.tsx';

const PAIR = [
  { key: 'ddp', label: 'DDP' },
  { key: 'fullShard', label: 'FULL_SHARD' },
] as const;

/** The quick start's two runs as the planner sees them, on one scale: the answer before the question is run. */
export function PredictedPair() {
  const corpus = useQuery({
    queryKey: ['corpus', 'moby-dick', null, 35],
    queryFn: ({ signal }) => getCorpus({ kind: 'moby-dick', path: null, blockSize: 35 }, signal),
    staleTime: Number.POSITIVE_INFINITY,
  });
  const vocabSize = corpus.data?.vocabSize;
  const jobs = useMemo(
    () =>
      vocabSize
        ? PAIR.map(({ key }) => {
            const config = quickStartConfigs[key];
            const model = { ...config.model, vocabSize };
            return { key, config: { ...config, model }, profile: builtInProfiles.software };
          })
        : null,
    [vocabSize],
  );
  const { outcomes } = usePredictions(jobs);
  const plans = PAIR.map(({ key, label }) => ({ label, plan: outcomes.get(key)?.plan ?? null }));
  const maxY = Math.max(...plans.map(({ plan }) => plan?.peakBytes ?? 0)) * 1.12;
  return (
    <section aria-label="Predicted memory of the quick start" className="panel min-h-[340px] min-w-0 p-4 sm:p-5">
      <div className="flex items-baseline justify-between">
        <h2 className="font-semibold">Memory of one rank, over one step</h2>
        <span className="rounded-full bg-accent-soft px-2 text-xs font-medium text-accent">predicted</span>
      </div>
      <div className="mt-4 space-y-4">
        {plans.map(({ label, plan }) =>
          plan ? (
            <MemoryTimeline
              key={label}
              plan={plan}
              title={`${label}: ${formatBytes(plan.peakBytes)}`}
              heightPx={132}
              maxY={maxY}
            />
          ) : (
            <div
              key={label}
              className="h-[160px] rounded-lg bg-sunken motion-safe:animate-[pulse-dot_2s_ease-in-out_infinite]"
            />
          ),
        )}
      </div>
      <ul className="mt-3 flex flex-wrap gap-x-3 gap-y-1 text-xs text-muted">
        {CATEGORY_LOOKS.map(({ category, colour }) => (
          <li key={category} className="flex items-center gap-1.5">
            <Dot colour={colour} square />
            {category}
          </li>
        ))}
      </ul>
    </section>
  );
}
