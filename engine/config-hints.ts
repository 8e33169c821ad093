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
        'with strategy.cpuOffload this costs 12 bytes more for each parameter of a rank, in every step: all gradients have ' +
        'to be known before the first update, so they go to the host and back, and parameters come once more',
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

/** The setting for which all gradients of a step have to be known before anything is updated, if there is one. */
function needsAllGradients({ precision, trainer }: ExperimentConfig): string | null {
  if (precision === '16-mixed') return 'precision';
  if (trainer.gradientClipVal !== null && trainer.gradientClipAlgorithm === 'norm') return 'trainer.gradientClipVal';
  return trainer.onNonFinite === 'skip' ? 'trainer.onNonFinite' : null;
}
