import { join } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import type { CheckpointKind, ConvertLine } from '../contract.ts';
import type { BroughtCheckpoints } from './brought-checkpoints.ts';
import { ENDING_OF, safeStem, withoutEnding } from './checkpoint-names.ts';
import { checkpointInProcess } from './checkpoint-process.ts';
import { openDraft, placeDraftFreely } from './draft.ts';

export interface WantedConversion {
  readonly from: string;
  readonly kind: CheckpointKind;
  readonly ranks: number | undefined;
  /** As it is to be called; its ending follows from the form. */
  readonly name: string;
}

/**
 * Writes a checkpoint in another form beside those that were brought, as `checkpoint convert` does, and gives the lines of
 * it. It appears when it is whole, with its digests, or not at all.
 */
export async function* convertHere(
  { from, kind, ranks, name }: WantedConversion,
  uploads: string,
  brought: BroughtCheckpoints,
  signal: AbortSignal,
): AsyncGenerator<ConvertLine, void, void> {
  const parts = { stem: safeStem(withoutEnding(name), 'checkpoint'), ending: ENDING_OF[kind] };
  const made = `${parts.stem}${parts.ending}`;
  const draft = await openDraft(uploads, made);
  const failed = ({ code, message }: { code: string; message: string }): ConvertLine => ({
    type: 'failed',
    error: { code, message: draft.told(message) },
  });
  try {
    const task = { action: 'convert', from, to: join(draft.folder, made), kind, ranks } as const;
    for await (const line of checkpointInProcess(task, signal)) {
      if (line.type === 'progress') yield line;
      if (line.type === 'failed') yield failed(line.error);
      if (line.type !== 'converted') continue;
      const placed = await placeDraftFreely(draft, made, parts, uploads);
      yield { type: 'converted', checkpoint: await brought.get(placed), dropped: line.dropped };
    }
  } catch (error) {
    if (!(error instanceof StudioError)) throw error;
    yield failed(error);
  } finally {
    await draft.remove();
  }
}
