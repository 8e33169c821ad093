'use client';

import { useQuery } from '@tanstack/react-query';
import { getRun } from '../../_lib/api.ts';
import { type Draft, toDraft, valueAt, withoutDefaults, withValue } from '../../_lib/config-draft.ts';
import { ButtonLink } from '../ui/button.tsx';
import { Notice } from '../ui/notice.tsx';
import { NewRunPage } from './new-run-page.tsx';

/** A new run that starts from an older one's config. */
export function ClonedRunPage({ from, resume }: { from: string; resume: string | null }) {
  const { data, error } = useQuery({
    queryKey: ['run', from],
    queryFn: ({ signal }) => getRun(from, signal),
    staleTime: Number.POSITIVE_INFINITY,
  });
  if (data) {
    const cloned = { ...withoutDefaults(toDraft(data.config)), name: nextName(data.name) };
    return <NewRunPage initial={resume === null ? cloned : resuming(cloned, resume)} from={data.name} />;
  }
  if (error)
    return (
      <Notice
        tone="bad"
        page
        title="The run to clone cannot be read"
        action={<ButtonLink href="/runs/new">Start from the defaults</ButtonLink>}
      >
        {error.message}
      </Notice>
    );
  return <p className="py-20 text-center text-faint">Loading the run to clone…</p>;
}

/** The same run going on from a checkpoint: what it started from counts no more, and there have to be steps left. */
function resuming(config: Draft, path: string): Draft {
  const step = Number(/step-(\d+)/.exec(path)?.[1] ?? 0);
  const steps = valueAt(toDraft(config), 'trainer.steps');
  const left = typeof steps === 'number' && steps > step;
  const more = left ? config : withValue(config, 'trainer.steps', 2 * Math.max(step, 1));
  return withValue(withValue(more, 'init.from', null), 'checkpoint.resume', path);
}

/** "demo" → "demo-2" → "demo-3". */
function nextName(name: string): string {
  const [, stem, number] = /^(.*?)(?:-(\d{1,4}))?$/.exec(name) ?? [];
  return stem ? `${stem}-${Number(number ?? 1) + 1}` : `${name}-2`;
}
