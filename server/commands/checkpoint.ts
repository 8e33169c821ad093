import { parseArgs } from 'node:util';
import { readFullCheckpoint, type StoredCheckpoint } from '../../engine/checkpoint/full-checkpoint.ts';
import { openWeights } from '../../engine/checkpoint/weights-file.ts';
import { StudioError } from '../../engine/errors.ts';
import { openFileSource } from '../../engine/node/file-bytes.ts';
import { UsageError } from './usage.ts';

interface Tensor {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly number[];
}

/** What `checkpoint inspect` says of a file. */
interface Inspection {
  readonly file: string;
  readonly bytes: number;
  readonly format: 'torch' | 'safetensors';
  readonly params: number;
  readonly tensors: readonly Tensor[];
  readonly optimizers: readonly { readonly key: string; readonly parameters: number; readonly groups: unknown }[];
  readonly iter: number | null;
  readonly config: unknown;
}

/** `checkpoint inspect FILE [--json]`: what a file holds; nothing in it is executed. Returns the exit code. */
export async function checkpoint(args: string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args,
    allowPositionals: true,
    options: { json: { type: 'boolean', default: false } },
  });
  const [action, file, ...rest] = positionals;
  if (action === 'verify' || action === 'convert')
    throw new StudioError('not-built-yet', `checkpoint ${action} is not built yet`);
  if (action !== 'inspect' || file === undefined || rest.length)
    throw new UsageError('checkpoint inspect takes one FILE');
  const found = await inspect(file);
  process.stdout.write(`${values.json ? JSON.stringify(found, null, 2) : toText(found)}\n`);
  return 0;
}

async function inspect(file: string): Promise<Inspection> {
  const source = await openFileSource(file);
  try {
    const weights = await openWeights(source);
    const tensors = weights.names.map((name) => ({ name, dtype: weights.dtype(name), shape: weights.shape(name) }));
    const full = weights.format === 'torch' ? await readFullCheckpoint(source) : null;
    return {
      file,
      bytes: source.bytes,
      format: weights.format,
      params: tensors.reduce((sum, { shape }) => sum + shape.reduce((count, extent) => count * extent, 1), 0),
      tensors,
      optimizers: full ? describeOptimizers(full) : [],
      iter: full?.iter ?? null,
      config: full?.config ?? null,
    };
  } finally {
    await source.close();
  }
}

function describeOptimizers({ optimizers }: StoredCheckpoint) {
  return optimizers.map(({ key, state, groups }) => ({ key, parameters: state.size, groups }));
}

function toText({ file, bytes, format, params, tensors, optimizers, iter, config }: Inspection): string {
  const width = Math.max(0, ...tensors.map(({ name }) => name.length));
  return [
    `${file}: ${format}, ${bytes.toLocaleString('en')} bytes`,
    `${tensors.length} tensors, ${params.toLocaleString('en')} elements`,
    ...tensors.map(({ name, dtype, shape }) => `  ${name.padEnd(width)}  ${dtype}  [${shape.join(', ')}]`),
    ...optimizers.map(({ key, parameters }) => `${key}: state of ${parameters} parameters`),
    ...(iter === null ? [] : [`iter ${iter}`]),
    ...(config === null ? [] : [`config ${JSON.stringify(config)}`]),
  ].join('\n');
}
