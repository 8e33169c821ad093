import { z } from 'zod';
import { ExperimentConfig } from '../config.ts';
import { byCategory, CheckpointRecord, RunError, RunEvent } from '../trainer/events.ts';

/**
 * What a worker process and its parent say to each other over Node's IPC channel. One worker runs one rank, or, with the
 * interpreter, all of them. A worker whose channel closes ends by itself within a second.
 */

/** First message to a worker. All paths are absolute and were confined by the parent. */
export const WorkerStart = z.strictObject({
  type: z.literal('start'),
  /** The ranks that this process runs: one, or all with the interpreter. */
  ranks: z.array(z.number().int()).min(1),
  world: z.number().int(),
  config: ExperimentConfig,
  /** `interpreter`, or the id of an adapter that discoverAdapters() listed. */
  adapterId: z.string(),
  /** A folder of this run alone for the ranks' shared memory; the parent removes it after the run. */
  sharedFolder: z.string(),
  /** Where prepared corpora are kept. */
  corpusFolder: z.string(),
  /** Where checkpoints/ is made. */
  runFolder: z.string(),
  /** Whether the listed lives of tensors are checked against what the device touched, at a cost in speed. */
  recordTouches: z.boolean(),
  /** Where rank 0 writes the final weights straight from the shards as safetensors, if asked for; the same for all ranks. */
  weightsFile: z.string().nullable(),
  /** Which step of training to trace, null for the third (or the last, of fewer); left out: none. Traces are in traces/. */
  trace: z.strictObject({ step: z.number().int().nullable() }).optional(),
});
export type WorkerStart = z.infer<typeof WorkerStart>;

export const ToWorker = z.discriminatedUnion('type', [
  WorkerStart,
  /** End after the step under way, saving as configured. */
  z.strictObject({ type: z.literal('stop') }),
  /** Save after the step under way and go on. Telling one rank is enough; all hear it with the next step's report. */
  z.strictObject({ type: z.literal('save') }),
  /** Trace the next step that begins when all have heard it, in the same way. */
  z.strictObject({ type: z.literal('trace') }),
]);
export type ToWorker = z.infer<typeof ToWorker>;

/** What the heartbeat thread writes to its own pipe, a line of JSON a second. `phase` is for the person who waits. */
export const Heartbeat = z.strictObject({ phase: z.string(), step: z.number().int().nullable() });

export const FromWorker = z.discriminatedUnion('type', [
  /** What the parent makes of each line of the heartbeat pipe. */
  z.strictObject({ type: z.literal('heartbeat'), ...Heartbeat.shape }),
  z.strictObject({ type: z.literal('event'), event: RunEvent }),
  /** The worker's ranks are done; it exits with code 0 after this. */
  z.strictObject({
    type: z.literal('done'),
    status: z.enum(['finished', 'stopped']),
    checkpoints: z.array(CheckpointRecord),
    ranks: z.array(z.strictObject({ rank: z.number().int(), peakBytes: z.number().int(), byCategory })),
  }),
  /** The worker's ranks failed; it exits with code 1 after this. A peer that only noticed says `peer-lost`. */
  z.strictObject({ type: z.literal('failed'), error: RunError }),
]);
export type FromWorker = z.infer<typeof FromWorker>;
