import { type ConfigProblem, type ExperimentConfig, parseConfig } from '../../engine/config.ts';
import { StudioError } from '../../engine/errors.ts';
import { confine } from '../data-folder.ts';

/**
 * A config that came over HTTP, checked and whole; its paths stay relative to the data folder `root`, and each leads to
 * something inside it. Throws `invalid-config` with every problem at its field.
 */
export async function parseSubmittedConfig(input: unknown, root: string): Promise<ExperimentConfig> {
  const config = parseConfig(input);
  const { data, init, checkpoint } = config;
  const paths: readonly (readonly [field: string, path: string | null])[] = [
    ['data.path', 'path' in data ? data.path : null],
    ['init.from', init.from],
    ['checkpoint.resume', checkpoint.resume === 'latest' ? null : checkpoint.resume],
  ];
  const problems: ConfigProblem[] = [];
  for (const [field, path] of paths) {
    if (path === null) continue;
    try {
      await confine(root, path);
    } catch (error) {
      if (!(error instanceof StudioError)) throw error;
      problems.push({ path: field, message: `${error.message} Upload the file first.`, code: 'invalid-config' });
    }
  }
  if (problems.length === 0) return config;
  const message = problems.map((problem) => `${problem.path}: ${problem.message}`).join('\n');
  throw new StudioError('invalid-config', message, { problems });
}
