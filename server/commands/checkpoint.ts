import { resolve } from 'node:path';
import type { CheckpointKind } from '../../engine/checkpoint/stored-checkpoint.ts';
import { StudioError } from '../../engine/errors.ts';
import { convertCheckpointPath } from '../../engine/node/checkpoint-convert.ts';
import { verifyCheckpoint } from '../../engine/node/checkpoint-verify.ts';
import { type CheckpointInspection, inspectCheckpoint } from '../../engine/node/inspect-checkpoint.ts';
import { oneOf, readArguments } from './arguments.ts';
import { printable } from './output.ts';
import { mib } from './sizes.ts';
import { UsageError } from './usage.ts';

const KINDS: readonly CheckpointKind[] = ['full', 'sharded', 'safetensors'];
const ACTIONS = ['inspect', 'verify', 'convert'] as const;

/**
 * `checkpoint inspect|verify FILE [--json]` and `checkpoint convert FILE TO`: what a checkpoint holds, whether it is whole,
 * and the same in another form. FILE is a file or a sharded folder; nothing in it is executed. Returns the exit code.
 */
export async function checkpoint(args: string[]): Promise<number> {
  const { values, positionals } = readArguments({
    args,
    allowPositionals: true,
    options: {
      json: { type: 'boolean', default: false },
      all: { type: 'boolean', default: false },
      format: { type: 'string' },
      ranks: { type: 'string' },
    },
  });
  const [first, path, target, ...rest] = positionals;
  if (first === undefined) throw new UsageError(`checkpoint takes one of ${ACTIONS.join(', ')}, and a FILE`);
  const action = oneOf('checkpoint', first, ACTIONS);
  const takesTarget = action === 'convert';
  if (path === undefined || rest.length)
    throw new UsageError(`checkpoint ${action} takes ${takesTarget ? 'FILE and TO' : 'one FILE'}`);
  if (takesTarget !== (target !== undefined))
    throw new UsageError(takesTarget ? 'checkpoint convert takes FILE and TO' : `checkpoint ${action} takes one FILE`);
  if (!takesTarget && (values.format !== undefined || values.ranks !== undefined))
    throw new UsageError('--format and --ranks are of checkpoint convert');
  if (action !== 'inspect' && values.all) throw new UsageError('--all is of checkpoint inspect');
  const say = (found: object, text: string) =>
    process.stdout.write(`${values.json ? JSON.stringify(found, null, 2) : text}\n`);
  if (action === 'inspect') {
    const found = await inspectCheckpoint(path);
    say({ file: path, format: found.kind, ...found }, toText(path, found, values.all));
  } else if (action === 'verify') {
    const { kind, digests } = await verifyCheckpoint(path);
    const how = digests
      ? 'each file is what its sha256 says'
      : 'no sha256 is beside it; what its format has to check fits';
    say({ file: path, format: kind, digests, whole: true }, `${path}: ${kind}, ${how}`);
  } else {
    const to = resolve(target);
    const kind = kindOf(values.format, target);
    const { dropped } = await convertCheckpointPath({ from: path, to, kind, ranks: ranksOf(values.ranks, kind) });
    const left = dropped.length ? `; left out, since this form has no room for it: ${dropped.join(', ')}` : '';
    say({ file: target, format: kind, dropped }, printable(`${target}: ${kind}${left}`));
  }
  return 0;
}

function kindOf(format: string | undefined, target: string): CheckpointKind {
  if (format !== undefined) return oneOf('--format', format, KINDS);
  if (/\.safetensors$/i.test(target)) return 'safetensors';
  return /\.(ckpt|pt|pth|bin)$/i.test(target) ? 'full' : 'sharded';
}

function ranksOf(text: string | undefined, kind: CheckpointKind): number | undefined {
  if (text === undefined) return undefined;
  const ranks = Number(text);
  if (kind !== 'sharded') throw new UsageError('--ranks is for a sharded folder');
  if (!Number.isInteger(ranks) || ranks < 1 || ranks > 1024)
    throw new StudioError('invalid-config', `--ranks: ${text} is no number of ranks from 1 to 1024`);
  return ranks;
}

/** How many tensors a person is shown who did not ask for all. */
const MAX_TENSORS = 12;

/** What `inspect` shows a person; names come from the file, so no control character of theirs reaches the terminal. */
export function toText(path: string, found: CheckpointInspection, all: boolean): string {
  const { kind, bytes, files, params, tensors: whole, optimizers, iter, samples, config } = found;
  const tensors = all ? whole : whole.slice(0, MAX_TENSORS);
  const width = Math.max(0, ...tensors.map(({ name }) => name.length));
  const count = (value: number) => value.toLocaleString('en');
  return [
    `${path}: ${kind}, ${mib(bytes)} in ${files.length === 1 ? 'one file' : `${files.length} files`}`,
    `${count(whole.length)} tensors, ${count(params)} parameters`,
    ...tensors.map(({ name, dtype, shape, parts }) => {
      const where = parts.length > 1 ? `  in ${parts.length} chunks` : '';
      return `  ${name.padEnd(width)}  ${dtype}  [${shape.join(', ')}]${where}`;
    }),
    ...(tensors.length < whole.length ? [`  … and ${count(whole.length - tensors.length)} more (--all)`] : []),
    ...optimizers.map(
      ({ key, parameters, groups }) => `${key}: state of ${parameters} parameters, ${groups.length} group(s)`,
    ),
    ...(iter === null ? [] : [`iter ${iter}`]),
    ...(samples === null ? [] : [`samples ${samples}`]),
    ...(config === null ? [] : [all ? `config ${JSON.stringify(config)}` : 'with the config of its run (--all)']),
  ]
    .map(printable)
    .join('\n');
}
