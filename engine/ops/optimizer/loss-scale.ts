/** Dynamic loss scaling as torch.amp.GradScaler has it by default. All factors are powers of two, so scaling is exact. */
export const LOSS_SCALE = {
  initial: 65_536,
  growth: 2,
  backoff: 0.5,
  /** Finite steps in a row after which the scale grows. */
  growthInterval: 2000,
  /** The scale never falls below this: a gradient that is not finite at it is not for the scale to mend. */
  least: 2 ** -24,
} as const;
