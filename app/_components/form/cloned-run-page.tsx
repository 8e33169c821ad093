'use client';

import { useQuery } from '@tanstack/react-query';
import { getRun } from '../../_lib/api.ts';
import { toDraft, withoutDefaults } from '../../_lib/config-draft.ts';
import { nextName, type Start, startingFrom } from '../../_lib/started-config.ts';
import { ButtonLink } from '../ui/button.tsx';
import { Notice } from '../ui/notice.tsx';
import { NewRunPage } from './new-run-page.tsx';

/** A new run that starts from an older one's config and, if `start` says so, from one of its checkpoints. */
export function ClonedRunPage({ from, start }: { from: string; start: Start | null }) {
  const { data, error } = useQuery({
    queryKey: ['run', from],
    queryFn: ({ signal }) => getRun(from, signal),
    staleTime: Number.POSITIVE_INFINITY,
  });
  if (data) {
    const cloned = { ...withoutDefaults(toDraft(data.config)), name: nextName(data.name) };
    return <NewRunPage initial={start === null ? cloned : startingFrom(cloned, start)} from={data.name} />;
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
