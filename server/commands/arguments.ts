import { type ParseArgsConfig, parseArgs } from 'node:util';
import { didYouMean } from '../../engine/nearest-word.ts';
import { UsageError } from './usage.ts';

/** `parseArgs` in words of our own: throws UsageError, which names the nearest option where there is none of that name. */
export function readArguments<T extends ParseArgsConfig>(config: T): ReturnType<typeof parseArgs<T>> {
  const options = config.options ?? {};
  const { tokens = [] } = parseArgs({ ...config, strict: false, allowPositionals: true, tokens: true });
  for (const token of tokens) {
    if (token.kind === 'positional' && !config.allowPositionals)
      throw new UsageError(`${token.value}: only options are taken here`);
    if (token.kind !== 'option') continue;
    const { name, rawName, value, inlineValue } = token;
    if (!Object.hasOwn(options, name)) {
      const known = Object.keys(options).map((option) => `--${option}`);
      throw new UsageError(`there is no option ${rawName}${didYouMean(rawName, known)}`);
    }
    if (options[name].type === 'boolean') {
      if (value !== undefined) throw new UsageError(`${rawName} takes no value, and ${value} is one`);
    } else if (value === undefined) throw new UsageError(`${rawName} needs a value`);
    // A value that begins with a dash is written --option=-value.
    else if (!inlineValue && /^-./.test(value))
      throw new UsageError(`${rawName} needs a value, and ${value} looks like an option; ${rawName}=${value} takes it`);
  }
  return parseArgs(config);
}

/** One of the words that an argument may be. Throws UsageError, which lists them and names the nearest. */
export function oneOf<T extends string>(what: string, word: string, words: readonly T[]): T {
  if ((words as readonly string[]).includes(word)) return word as T;
  throw new UsageError(`${what} ${word} is none of ${words.join(', ')}${didYouMean(word, words)}`);
}
