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
export function configHints(config: ExperimentConfig): ConfigHint[] {
  const { precision, optimizer, strategy } = config;
  const hints: ConfigHint[] = [];
  const needsAll = strategy.kind === 'fsdp' && strategy.cpuOffload ? needsAllGradients(config) : null;
  if (needsAll)
    hints.push({
      path: needsAll,
      message:
        `With strategy.cpuOffload, ${needsAll} makes gradients wait in host memory until all are known: it grows by their size, ` +
        `and in every step ${extraBytes(precision)} bytes more cross between host and device for each parameter that a rank holds.`,
    });
  if (precision === '16-true' && optimizer.kind !== 'sgd' && optimizer.eps < LEAST_FLOAT16)
    hints.push({
      path: 'optimizer.eps',
      message:
        `${optimizer.eps} is below float16's smallest number, 6e-8: precision 16-true keeps Adam's squares in float16, where a ` +
        `small one is 0, and the step is then divided by eps alone. Set optimizer.eps ${EPS_FLOAT16}, or precision 16-mixed`,
    });
  return hints;
}

/**
 * What crosses more for a parameter whose update waits: its gradient to the host and back, as it is kept; in 32-true also the
 * parameter, which an update in backward finds on the device.
 */
function extraBytes(precision: ExperimentConfig['precision']): number {
  if (precision === '16-true') return 4;
  return precision === '16-mixed' ? 8 : 12;
}

/** The setting for which all gradients of a step have to be known before anything is updated, if there is one. */
function needsAllGradients({ precision, trainer }: ExperimentConfig): string | null {
  if (precision === '16-mixed') return 'precision';
  if (trainer.gradientClipVal !== null && trainer.gradientClipAlgorithm === 'norm') return 'trainer.gradientClipVal';
  return trainer.onNonFinite === 'skip' ? 'trainer.onNonFinite' : null;
}
