'use client';

import { useMutation, useQueryClient } from '@tanstack/react-query';
import { deleteBrought } from '../../_lib/api.ts';
import { ConfirmButton } from '../ui/confirm.tsx';

/** Deletes a checkpoint that was brought, after a question. `compact`: the icon alone, in a list. */
export function DeleteCheckpoint(props: { name: string; compact?: boolean; onDeleted?: () => void }) {
  const { name, compact, onDeleted } = props;
  const client = useQueryClient();
  const remove = useMutation({
    mutationFn: () => deleteBrought(name),
    onSuccess: async () => {
      onDeleted?.();
      await client.invalidateQueries({ queryKey: ['brought'] });
    },
  });
  return (
    <>
      <ConfirmButton
        label={compact ? `Delete ${name}` : 'Delete'}
        compact={compact}
        icon="trash"
        title={`Delete ${name}?`}
        text="Its files leave the data folder for good. Runs that started from it keep what they have."
        confirm="Delete"
        disabled={remove.isPending}
        onConfirm={() => remove.mutate()}
      />
      {remove.error ? (
        <p role="alert" className="basis-full text-xs text-bad">
          {remove.error.message}
        </p>
      ) : null}
    </>
  );
}
