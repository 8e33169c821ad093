import { z } from 'zod';
import { RESOURCES } from '../schedule/cost.ts';

/**
 * What a run reports, as one JSON object a line in `--report`, over HTTP and in the database. Numbers that are not finite
 * travel as the words "NaN", "Infinity" and "-Infinity".
 */
export const wireNumber = z.union([z.number(), z.enum(['NaN', 'Infinity', '-Infinity'])]);
export type WireNumber = z.infer<typeof wireNumber>;

/** A number as JSON can carry it. */
export function toWire(value: number): WireNumber {
  return Number.isFinite(value) ? value : (String(value) as WireNumber);
}

/** A number from its wire form. */
export function fromWire(value: WireNumber): number {
  return typeof value === 'number' ? value : Number(value);
}

const bytes = z.number().int().nonnegative();
export const byCategory = z.strictObject({
  parameters: bytes,
  gathered: bytes,
  gradients: bytes,
  optimizer: bytes,
  activations: bytes,
  workspace: bytes,
  staging: bytes,
});
export type BytesByCategory = z.infer<typeof byCategory>;

export const StartEvent = z.strictObject({
  event: z.literal('start'),
  params: z.number(),
  world: z.number(),
  adapters: z.array(z.strictObject({ name: z.string(), pciId: z.string().nullable(), software: z.boolean() })),
  /** Runs of former versions have no time in it. */
  predicted: z.strictObject({
    peakBytes: bytes,
    liveBytes: bytes,
    byCategory,
    estimateMs: z.number().nullable().optional(),
    boundBy: z.enum(RESOURCES).optional(),
    /** Whether the estimate is by rates that were measured on the adapter. */
    calibrated: z.boolean().optional(),
  }),
  /** Kernel variants that a tuner chose, by class of shapes; left out where all are the defaults. */
  variants: z.record(z.string(), z.string()).optional(),
});

export const StepEvent = z.strictObject({
  event: z.literal('step'),
  rank: z.number().int(),
  step: z.number().int(),
  loss: wireNumber,
  lossMean: wireNumber,
  gradNorm: wireNumber,
  iterationMs: z.number(),
  tokens: z.number().int(),
  memory: z.strictObject({
    currentBytes: bytes,
    peakBytes: bytes,
    liveBytes: bytes,
    byCategory,
    hostBytes: bytes,
    allocRetries: z.number().int(),
    ooms: z.number().int(),
  }),
});
export type StepEvent = z.infer<typeof StepEvent>;

export const CheckpointRecord = z.strictObject({
  path: z.string(),
  format: z.string(),
  step: z.number().int(),
  sha256: z.string(),
});
export type CheckpointRecord = z.infer<typeof CheckpointRecord>;

/** Mean loss over the held-out batches after a step: over all ranks and batches. */
export const ValidationEvent = z.strictObject({
  event: z.literal('validation'),
  step: z.number().int(),
  loss: wireNumber,
});
export type ValidationEvent = z.infer<typeof ValidationEvent>;

/** A checkpoint is whole and listed. `removed`: the paths of older ones that checkpoint.keepLast deleted. */
export const CheckpointEvent = z.strictObject({
  event: z.literal('checkpoint'),
  ...CheckpointRecord.shape,
  removed: z.array(z.string()).optional(),
});

/** One rank's memorySummary() table, at the end. */
export const SummaryEvent = z.strictObject({ event: z.literal('summary'), rank: z.number().int(), text: z.string() });

/** A line worth a person's attention: what was chosen, what takes long. `rank` null: the whole run. */
export const LogEvent = z.strictObject({
  event: z.literal('log'),
  rank: z.number().int().nullable(),
  line: z.string(),
});

export const RunError = z.strictObject({
  code: z.string(),
  message: z.string(),
  rank: z.number().int().nullable(),
  step: z.number().int().nullable(),
});
export type RunError = z.infer<typeof RunError>;

export const EndEvent = z.strictObject({
  event: z.literal('end'),
  status: z.enum(['finished', 'stopped', 'failed']),
  checkpoints: z.array(CheckpointRecord),
  peakBytesByRank: z.array(bytes),
  error: RunError.optional(),
});
export type EndEvent = z.infer<typeof EndEvent>;

export const RunEvent = z.discriminatedUnion('event', [
  StartEvent,
  StepEvent,
  ValidationEvent,
  CheckpointEvent,
  SummaryEvent,
  LogEvent,
  EndEvent,
]);
export type RunEvent = z.infer<typeof RunEvent>;
