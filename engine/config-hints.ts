import type { ExperimentConfig } from './config.ts';

/** What is legal and may still not be meant: where, and what to set. */
export interface ConfigHint {
  /** Dotted path of the person's own key. */
  readonly path: string;
  readonly message: string;
}

/** float16's smallest number above 0. */
const LEAST_FLOAT16 = 2 ** -24;
/** Its square root, rounded to what one writes: the least root of a second moment that float16 tells from 0. */
const EPS_FLOAT16 = 1e-4;

/** What to know of a config before it runs. It is trained as it is. */
export function configHints({ precision, optimizer }: ExperimentConfig): ConfigHint[] {
  const hints: ConfigHint[] = [];
  if (precision === '16-true' && optimizer.kind !== 'sgd' && optimizer.eps < LEAST_FLOAT16)
    hints.push({
      path: 'optimizer.eps',
      message:
        `${optimizer.eps} is below float16's smallest number, 6e-8: precision 16-true keeps Adam's squares in float16, where a ` +
        `small one is 0, and the step is then divided by eps alone. Set optimizer.eps ${EPS_FLOAT16}, or precision 16-mixed`,
    });
  return hints;
}
