/**
 * The control tensor: the scalars of a step, kept on the device so that a decision (a skipped step, a halted run) reaches
 * every kernel without the host waiting. 16 float32 values; the host writes the first two before each step.
 */
export const CONTROL = {
  /** What the schedule of learning rates makes of this step: a factor of each parameter's own rate (host). */
  lrFactor: 0,
  /** Index of this optimizer step from 0, as u32 bits (host): the counter of dropout's random numbers. */
  step: 1,
  /** Optimizer steps taken, Adam's t. */
  t: 2,
  /** Mean loss of this rank in this step. */
  loss: 3,
  /** Global gradient norm. */
  gradNorm: 4,
  /** 1 when this step's gradients are not finite: nothing is updated. */
  foundInf: 5,
  /** 1 once a step was not finite and the run is to stop: nothing is updated any more. */
  halted: 6,
  /** 1 − β1^t and √(1 − β2^t) of this step. */
  biasCorrection1: 7,
  sqrtBiasCorrection2: 8,
  /** What gradients are multiplied by before they are used: min(1, largest norm / norm), or 1. */
  clip: 9,
  /** With 16-mixed: what the loss's gradient is multiplied by, and how many steps in a row have been finite under it. */
  lossScale: 10,
  goodSteps: 11,
} as const;
export const CONTROL_ELEMENTS = 16;
export const CONTROL_HOST_ELEMENTS = 2;
