import { relative } from 'node:path';
import { type ConfigProblem, type ExperimentConfig, parseConfig } from '../../engine/config.ts';
import { StudioError } from '../../engine/errors.ts';
import { confine } from '../data-folder.ts';
import { pathsOf, withAbsolutePaths } from './config-paths.ts';

/**
 * A config that came over HTTP, checked and whole. Each of its paths leads to something inside the data folder `root`, and is
 * relative to that as short as it can be, whatever way it was named by. Throws `invalid-config` with every problem at its
 * field.
 */
export async function parseSubmittedConfig(input: unknown, root: string): Promise<ExperimentConfig> {
  const config = parseConfig(input);
  const problems: ConfigProblem[] = [];
  const short = new Map<string, string>();
  for (const [field, path] of pathsOf(config)) {
    try {
      short.set(path, relative(root, await confine(root, path)));
    } catch (error) {
      if (!(error instanceof StudioError)) throw error;
      problems.push({ path: field, message: `${error.message} Upload the file first.`, code: 'invalid-config' });
    }
  }
  if (problems.length === 0) return withAbsolutePaths(config, (path) => short.get(path) ?? path);
  const message = problems.map((problem) => `${problem.path}: ${problem.message}`).join('\n');
  throw new StudioError('invalid-config', message, { problems });
}
