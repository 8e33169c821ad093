import { readFile } from 'node:fs/promises';
import { resolve } from 'node:path';
import { parseDocument } from 'yaml';
import { type ExperimentConfig, parseConfig } from '../../engine/config.ts';
import { StudioError } from '../../engine/errors.ts';
import { withAbsolutePaths } from '../runs/config-paths.ts';

/**
 * Reads a config from a YAML or JSON file. Relative paths in it are taken from the working directory, as those on the
 * command line are. Throws `invalid-config` with every problem at once.
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
  const written = parseText(file, text);
  if (written === null || written === undefined)
    throw new StudioError('invalid-config', `${file} is empty. Write {} for a run that has every default.`, { file });
  return withAbsolutePaths(parseConfig(written), (path) => resolve(path));
}

function parseText(file: string, text: string): unknown {
  const refuse = (what: string, line: number | undefined, cause: unknown): never => {
    const where = line === undefined ? '' : ` line ${line}`;
    throw new StudioError('invalid-config', `${file}${where} ${what}.`, { file }, { cause });
  };
  // What the parser would print of tags by itself is in its own words.
  const document = parseDocument(text, { logLevel: 'error' });
  const [error] = document.errors;
  // Its message quotes the text; the first line is enough and says what is wrong.
  const said = (message: string) => message.split('\n')[0].replace(/ at line \d+.*$/, '');
  if (error) refuse(`is neither YAML nor JSON: ${said(error.message)}`, error.linePos?.[0].line, error);
  const [warning] = document.warnings;
  if (warning?.code === 'TAG_RESOLVE_FAILED') {
    const tag = text.slice(...warning.pos).match(/^!\S*/)?.[0] ?? 'a tag';
    refuse(`has the tag ${tag}, which means nothing in a config: leave it out`, warning.linePos?.[0].line, warning);
  }
  try {
    return document.toJS({ maxAliasCount: 100 });
  } catch (cause) {
    return refuse(`is neither YAML nor JSON: ${said((cause as Error).message)}`, undefined, cause);
  }
}
