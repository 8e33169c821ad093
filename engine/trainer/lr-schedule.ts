import type { ExperimentConfig } from '../config.ts';

/**
 * The learning rate of a step as a factor of each parameter's own: a linear warm-up from 1/warmupSteps to 1, then constant,
 * a half cosine (Loshchilov and Hutter 2016) or a line down to minLr / lr at the end of the run. Steps count from 0.
 */
export function lrFactor(config: Pick<ExperimentConfig, 'lrSchedule' | 'optimizer' | 'trainer'>, step: number): number {
  const { kind, warmupSteps, minLr } = config.lrSchedule;
  if (step < warmupSteps) return (step + 1) / warmupSteps;
  if (kind === 'constant') return 1;
  const least = config.optimizer.lr > 0 ? minLr / config.optimizer.lr : 0;
  const progress = Math.min(1, (step - warmupSteps) / Math.max(1, config.trainer.steps - warmupSteps));
  const left = kind === 'cosine' ? (1 + Math.cos(Math.PI * progress)) / 2 : 1 - progress;
  return least + (1 - least) * left;
}
