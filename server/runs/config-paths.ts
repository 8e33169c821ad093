import type { ExperimentConfig } from '../../engine/config.ts';

/** The config with each of its paths to data, weights and checkpoints passed through `absolute`. */
export function withAbsolutePaths(config: ExperimentConfig, absolute: (path: string) => string): ExperimentConfig {
  const { data, init, checkpoint } = config;
  return {
    ...config,
    data: 'path' in data ? { ...data, path: absolute(data.path) } : data,
    init: { ...init, from: init.from === null ? null : absolute(init.from) },
    checkpoint: {
      ...checkpoint,
      resume:
        checkpoint.resume === null || checkpoint.resume === 'latest' ? checkpoint.resume : absolute(checkpoint.resume),
    },
  };
}
