import type { ExperimentConfig } from '../../engine/config.ts';
import { LATEST } from './latest-checkpoint.ts';

/** The config's paths to data, weights and checkpoints, each with its field. */
export function pathsOf({ data, init, checkpoint }: ExperimentConfig): [field: string, path: string][] {
  const all: [string, string | null][] = [
    ['data.path', 'path' in data ? data.path : null],
    ['init.from', init.from],
    ['checkpoint.resume', checkpoint.resume === LATEST ? null : checkpoint.resume],
  ];
  return all.flatMap(([field, path]) => (path === null ? [] : [[field, path] as [string, string]]));
}

/** The config with each of these passed through `change`: to an absolute one, as a rule. */
export function withAbsolutePaths(config: ExperimentConfig, change: (path: string) => string): ExperimentConfig {
  const { data, init, checkpoint } = config;
  const { resume } = checkpoint;
  return {
    ...config,
    data: 'path' in data ? { ...data, path: change(data.path) } : data,
    init: { ...init, from: init.from === null ? null : change(init.from) },
    checkpoint: { ...checkpoint, resume: resume === null || resume === LATEST ? resume : change(resume) },
  };
}
