import { join, resolve } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import { type Sampling, sampleCheckpoint } from '../../engine/node/sample-checkpoint.ts';
import { sampledPieces } from '../sampling/sampled-pieces.ts';
import { readArguments } from './arguments.ts';
import { readConfigFile } from './config-file.ts';
import { UsageError } from './usage.ts';

/**
 * `sample CHECKPOINT --prompt TEXT|--tokens IDS --count N …`: continues a prompt, on the interpreter or an adapter. Returns
 * the exit code.
 */
export async function sample(args: string[]): Promise<number> {
  const { values, positionals } = readArguments({
    args,
    allowPositionals: true,
    options: {
      prompt: { type: 'string' },
      tokens: { type: 'string' },
      count: { type: 'string', default: '20' },
      temperature: { type: 'string', default: '0' },
      'top-k': { type: 'string' },
      seed: { type: 'string', default: '0' },
      adapter: { type: 'string' },
      config: { type: 'string' },
      json: { type: 'boolean', default: false },
    },
  });
  if (positionals.length !== 1) throw new UsageError('sample takes one CHECKPOINT');
  if ((values.prompt === undefined) === (values.tokens === undefined))
    throw new UsageError('sample takes either --prompt or --tokens');
  const topK = values['top-k'];
  const sampling = await sampleCheckpoint({
    path: positionals[0],
    prompt: values.prompt ?? idsOf(values.tokens!),
    settings: {
      count: numberOf('--count', values.count),
      temperature: numberOf('--temperature', values.temperature),
      topK: topK === undefined ? null : numberOf('--top-k', topK),
      seed: numberOf('--seed', values.seed),
    },
    adapter: values.adapter,
    config: values.config === undefined ? undefined : await readConfigFile(values.config),
    corpusFolder: join(resolve(process.env.STUDIO_DATA || 'data'), 'corpora'),
  });
  try {
    await (values.json ? writeJson(sampling) : writeText(sampling));
  } finally {
    await sampling.close();
  }
  return 0;
}

async function writeJson({ prompt, tokens, text }: Sampling): Promise<void> {
  const drawn: number[] = [];
  for await (const token of tokens) drawn.push(token);
  process.stdout.write(`${JSON.stringify({ prompt, tokens: drawn, text: text(drawn) })}\n`);
}

/** The prompt and what follows, word by word as it is drawn; ids where the words are not known. */
async function writeText(sampling: Sampling): Promise<void> {
  for await (const { text } of sampledPieces(sampling)) process.stdout.write(text);
  process.stdout.write('\n');
}

/** Token ids with commas or blanks between them. */
function idsOf(text: string): number[] {
  return text
    .split(/[\s,]+/)
    .filter((id) => id !== '')
    .map((id) => numberOf('--tokens', id));
}

function numberOf(option: string, text: string): number {
  const value = Number(text);
  if (text.trim() === '' || !Number.isFinite(value))
    throw new StudioError('invalid-config', `${option}: ${text} is no number`);
  return value;
}
