'use client';

import { useQuery } from '@tanstack/react-query';
import { checkConfig } from '../../../engine/config.ts';
import type { CheckpointDetails } from '../../../server/contract.ts';
import { getCheckpoint } from '../../_lib/api.ts';
import type { CheckpointRef } from '../../_lib/checkpoint-ref.ts';
import { type Draft, toDraft, withoutDefaults } from '../../_lib/config-draft.ts';
import { PRESETS } from '../../_lib/presets.ts';
import { nextName, type Start, startingFrom } from '../../_lib/started-config.ts';
import { NewRunPage } from '../form/new-run-page.tsx';
import { ButtonLink } from '../ui/button.tsx';
import { Notice } from '../ui/notice.tsx';

/** A new run that starts from a checkpoint that was brought, with the settings that it holds. */
export function RunFromCheckpointPage({ checkpoint, start }: { checkpoint: CheckpointRef; start: Start }) {
  const { data, error } = useQuery({
    queryKey: ['checkpoint', checkpoint],
    queryFn: ({ signal }) => getCheckpoint(checkpoint, signal),
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });
  if (data)
    return (
      <NewRunPage initial={startingFrom(settingsOf(data), { ...start, step: data.iter ?? 0 })} from={checkpoint.name} />
    );
  if (error)
    return (
      <Notice
        tone="bad"
        page
        title="The checkpoint to start from cannot be read"
        action={<ButtonLink href="/checkpoints">All checkpoints</ButtonLink>}
      >
        {error.message}
      </Notice>
    );
  return <p className="py-20 text-center text-faint">Loading the checkpoint to start from…</p>;
}

/** What the run was set to that wrote it; weights alone say nothing, and the form begins as it always does. */
function settingsOf({ config: written }: CheckpointDetails): Draft {
  const { config } = checkConfig(written);
  if (written === null || !config) return toDraft(PRESETS[0].config);
  return { ...withoutDefaults(toDraft(config)), name: nextName(config.name) };
}
