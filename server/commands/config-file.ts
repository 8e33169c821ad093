import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { parse, YAMLParseError } from 'yaml';
import { type ExperimentConfig, parseConfig } from '../../engine/config.ts';
import { StudioError } from '../../engine/errors.ts';
import { withAbsolutePaths } from '../runs/config-paths.ts';

/**
 * Reads a config from a YAML or JSON file. Relative paths in it are taken from the working directory, as those on the
 * command line are. Throws `invalid-config` or `not-built-yet` with every problem at once.
 */
export async function readConfigFile(file: string): Promise<ExperimentConfig> {
  let text: string;
  try {
    text = await readFile(file, 'utf8');
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    const why = code === 'ENOENT' ? 'is not there' : `cannot be read (${code})`;
    throw new StudioError('invalid-config', `The config ${file} ${why}.`, { file }, { cause });
  }
  return withAbsolutePaths(parseConfig(parseText(file, text)), (path) => resolve(path));
}

function parseText(file: string, text: string): unknown {
  try {
    return parse(text, { maxAliasCount: 100 });
  } catch (cause) {
    const where = cause instanceof YAMLParseError && cause.linePos ? ` line ${cause.linePos[0].line}` : '';
    // The parser's message quotes the text; its first line is enough and says what is wrong.
    const what = (cause as Error).message.split('\n')[0].replace(/ at line \d+.*$/, '');
    throw new StudioError('invalid-config', `${file}${where} is neither YAML nor JSON: ${what}.`, { file }, { cause });
  }
}
