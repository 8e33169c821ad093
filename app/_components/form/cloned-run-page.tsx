'use client';

import { useQuery } from '@tanstack/react-query';
import { getRun } from '../../_lib/api.ts';
import { toDraft, withoutDefaults } from '../../_lib/config-draft.ts';
import { ButtonLink } from '../ui/button.tsx';
import { Notice } from '../ui/notice.tsx';
import { NewRunPage } from './new-run-page.tsx';

/** A new run that starts from an older one's config. */
export function ClonedRunPage({ from }: { from: string }) {
  const { data, error } = useQuery({
    queryKey: ['run', from],
    queryFn: ({ signal }) => getRun(from, signal),
    staleTime: Number.POSITIVE_INFINITY,
  });
  if (data)
    return (
      <NewRunPage initial={{ ...withoutDefaults(toDraft(data.config)), name: nextName(data.name) }} from={data.name} />
    );
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

/** "demo" → "demo-2" → "demo-3". */
function nextName(name: string): string {
  const [, stem, number] = /^(.*?)(?:-(\d{1,4}))?$/.exec(name) ?? [];
  return stem ? `${stem}-${Number(number ?? 1) + 1}` : `${name}-2`;
}
