import { z } from 'zod';
import type { ConversionRequest } from '../../engine/node/checkpoint-convert.ts';
import { FailedLine, FileLine, ProgressLine, VerifiedLine } from '../contract.ts';

/**
 * What the process that reads a checkpoint is told: to read all of it, to write it in another form, to say what each of some
 * holds with the first so many tensors, or what one tensor is like.
 */
export type CheckpointTask =
  | { readonly action: 'inspect'; readonly paths: readonly string[]; readonly tensors: number }
  | { readonly action: 'tensor'; readonly path: string; readonly name: string }
  | { readonly action: 'verify'; readonly path: string }
  | ({ readonly action: 'convert' } & Pick<ConversionRequest, 'from' | 'to' | 'kind' | 'ranks'>);

/** What it says: how far it is, what became of each file, and how it ended. */
export const CheckpointTaskLine = z.discriminatedUnion('type', [
  ProgressLine,
  FileLine,
  VerifiedLine,
  z.strictObject({ type: z.literal('converted'), dropped: z.array(z.string()) }),
  // Text: an inspection is the engine's, and taking it apart again is no work for the server.
  z.strictObject({ type: z.literal('inspected'), path: z.string(), json: z.string() }),
  z.strictObject({ type: z.literal('refused'), path: z.string(), error: FailedLine.shape.error }),
  z.strictObject({ type: z.literal('looked') }),
  z.strictObject({ type: z.literal('tensor'), json: z.string() }),
  FailedLine,
]);
export type CheckpointTaskLine = z.infer<typeof CheckpointTaskLine>;
