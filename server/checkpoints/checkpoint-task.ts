import { z } from 'zod';
import type { ConversionRequest } from '../../engine/node/checkpoint-convert.ts';
import { FailedLine, FileLine, ProgressLine, VerifiedLine } from '../contract.ts';

/** What the process that reads a checkpoint is told: to look at all of it, or to write it in another form. */
export type CheckpointTask =
  | { readonly action: 'verify'; readonly path: string }
  | ({ readonly action: 'convert' } & Pick<ConversionRequest, 'from' | 'to' | 'kind' | 'ranks'>);

/** What it says: how far it is, what became of each file, and how it ended. */
export const CheckpointTaskLine = z.discriminatedUnion('type', [
  ProgressLine,
  FileLine,
  VerifiedLine,
  z.strictObject({ type: z.literal('converted'), dropped: z.array(z.string()) }),
  FailedLine,
]);
export type CheckpointTaskLine = z.infer<typeof CheckpointTaskLine>;
