import type { Kernel, Params } from '../ops/kernel.ts';
import type { BytesByCategory } from './memory.ts';
import type { StepTrace } from './step-trace.ts';

/** What the host gives to a step of training. */
export interface StepFeed {
  /** Step of training, from 0. */
  readonly step: number;
  /** Which of the compiled batch shapes this is. */
  readonly shapeIndex: number;
  /** One for each micro-batch, row by row. */
  readonly inputs: readonly Uint32Array<ArrayBuffer>[];
  readonly targets: readonly Uint32Array<ArrayBuffer>[];
  /** What the schedule of learning rates makes of this step: a factor of each parameter's own rate. */
  readonly lrFactor: number;
  /** Asked when the step is reported: whether this rank has been told to stop. */
  readonly stopRequested: () => boolean;
  /** The same of a save. */
  readonly saveRequested?: () => boolean;
  /** The same of a trace of a step to come. */
  readonly traceRequested?: () => boolean;
  /** Takes down when each step of the schedule runs. */
  readonly trace?: StepTrace;
}

/** What a step of training says when it is done. */
export interface StepOutcome {
  readonly loss: number;
  /** Mean of the ranks' losses, added in the canonical tree. */
  readonly lossMean: number;
  readonly gradNorm: number;
  /** Whether this step or an earlier one was not finite, so that nothing is updated any more. */
  readonly halted: boolean;
  /** Whether some rank has been told to stop: all ranks hear it of the same step. */
  readonly stopRequested: boolean;
  /** Whether some rank has been asked for a checkpoint. */
  readonly saveRequested: boolean;
  /** Whether some rank has been asked for a trace of a step. */
  readonly traceRequested: boolean;
}

/** Memory of one rank as it was measured. */
export interface MeasuredMemory {
  /** Bytes of the buffers held now, and most ever. */
  readonly currentBytes: number;
  readonly peakBytes: number;
  /** Most live bytes of a step, and their split at that step. */
  readonly liveBytes: number;
  readonly byCategory: BytesByCategory;
  /** Host memory held for this rank: tensors kept there, and the mailbox regions of the schedule. */
  readonly hostBytes: number;
  readonly allocRetries: number;
  readonly ooms: number;
}

/** One rank of a run on some device: the interpreter's or a GPU's. */
export interface RankEngine {
  /** Sets all of a state tensor to zero. Before the first step. */
  clear(tensor: string): Promise<void>;
  /** Writes a part of a state tensor. Before the first step, or between steps. */
  write(tensor: string, offsetBytes: number, data: Float32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>): Promise<void>;
  /**
   * Runs a kernel that makes values of state tensors, its operands in their order. Before the first step, where the run's
   * plan says that the device makes its initial values.
   */
  make(kernel: Kernel, tensors: readonly string[], params: Params): Promise<void>;
  /** Reads a part of a state tensor. Between steps. */
  read(tensor: string, offsetBytes: number, bytes: number): Promise<Float32Array<ArrayBuffer>>;
  /** Starts a step. `submitted` resolves when the next may start; `outcome` when its numbers are there. */
  start(feed: StepFeed): { submitted: Promise<void>; outcome: Promise<StepOutcome> };
  /** A trace for the step that is started next. When no step is under way. */
  trace(): Promise<StepTrace>;
  memory(): MeasuredMemory;
  close(): Promise<void>;
}
