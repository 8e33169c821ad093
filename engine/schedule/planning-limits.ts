import { StudioError } from '../errors.ts';

/** What of a step is planned within about a minute of one core. */
export const PLANNING_LIMITS = {
  /** Units that the wrap policy makes, for each micro-batch. */
  units: 4096,
  /** Groups of parameters that travel as one, and their gathers in a step. */
  'groups of parameters and gathers of them': 12_288,
  /** Steps of a rank's schedule. */
  'parts in its schedule': 120_000,
} as const;

/** Refuses a step whose planning would take minutes, whatever makes it so large. Throws `invalid-config`. */
export function refuseTooMany(what: keyof typeof PLANNING_LIMITS, count: number): void {
  const most = PLANNING_LIMITS[what];
  if (count <= most) return;
  throw new StudioError(
    'invalid-config',
    `A step would have ${count.toLocaleString('en')} ${what}, more than the ${most.toLocaleString('en')} that can be planned in a ` +
      'minute: wrap fewer modules (strategy.autoWrapPolicy), raise strategy.bucketCapMiB, lower ' +
      'trainer.accumulateGradBatches, or take a model of fewer layers',
  );
}
