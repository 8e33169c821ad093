import { lstat, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { elementCount } from '../checkpoint/dtype.ts';
import { type PlainValue, toPlain } from '../checkpoint/python-value.ts';
import {
  type CheckpointKind,
  configOf,
  isStoredTensor,
  iterOf,
  type ListedTensor,
  listTensors,
  type StoredCheckpoint,
  type StoredCheckpointTensor,
  samplesOf,
} from '../checkpoint/stored-checkpoint.ts';
import { type TensorStatistics, tensorStatistics } from '../checkpoint/tensor-statistics.ts';
import { StudioError } from '../errors.ts';
import { readDigestList } from './checkpoint-folder.ts';
import { openCheckpointPath, plainFiles } from './checkpoint-path.ts';
import { naming } from './file-bytes.ts';
import { readDigest } from './whole-file.ts';

/** What a checkpoint holds, as plain data. */
export interface CheckpointInspection {
  readonly kind: CheckpointKind;
  readonly bytes: number;
  /** Each with the digest that was written beside it, if one was. */
  readonly files: readonly { readonly name: string; readonly bytes: number; readonly sha256: string | null }[];
  /** Elements of the model, tied ones once. */
  readonly params: number;
  readonly tensors: readonly ListedTensor[];
  readonly optimizers: readonly {
    readonly key: string;
    /** Parameters that have state. */
    readonly parameters: number;
    /** Options as torch names them, without `params`, which is counted. */
    readonly groups: readonly { readonly parameters: number; readonly options: PlainValue }[];
  }[];
  readonly iter: number | null;
  readonly samples: number | null;
  readonly config: PlainValue | null;
}

/** Looks at the checkpoint at `path`. No tensor is read and nothing executed. Errors: those of `openCheckpoint`. */
export async function inspectCheckpoint(path: string): Promise<CheckpointInspection> {
  const { checkpoint, close } = await openCheckpointPath(path);
  try {
    const files = await filesOf(path);
    const own = new Set(checkpoint.model.values());
    return {
      kind: checkpoint.kind,
      bytes: files.reduce((sum, file) => sum + file.bytes, 0),
      files,
      params: [...own].reduce((sum, { shape }) => sum + elementCount(shape), 0),
      tensors: listTensors(checkpoint),
      optimizers: checkpoint.optimizers.map(({ path: key, state, groups }) => ({
        key: key.join('.'),
        parameters: state.size,
        groups: groups.map((group) => {
          const members = toPlain(group.get('params') ?? []);
          const options = toPlain(new Map([...group].filter(([name]) => name !== 'params'))) ?? null;
          return { parameters: Array.isArray(members) ? members.length : 0, options };
        }),
      })),
      iter: iterOf(checkpoint),
      samples: samplesOf(checkpoint),
      config: configOf(checkpoint),
    };
  } finally {
    await close();
  }
}

/** What the elements of one tensor are like, by the name that `inspectCheckpoint` lists. 'not-found' for another name. */
export async function inspectTensor(path: string, name: string): Promise<TensorStatistics> {
  const { checkpoint, close } = await openCheckpointPath(path);
  try {
    const tensor = findTensor(checkpoint, name);
    if (!tensor) throw new StudioError('not-found', `This checkpoint has no tensor ${name.slice(0, 200)}.`);
    return await tensorStatistics(tensor);
  } finally {
    await close();
  }
}

function findTensor({ model, optimizers }: StoredCheckpoint, name: string): StoredCheckpointTensor | undefined {
  const own = model.get(name);
  if (own) return own;
  for (const { path, state } of optimizers)
    for (const [id, parts] of state)
      for (const [part, value] of parts)
        if (isStoredTensor(value) && [...path, 'state', id, part].join('.') === name) return value;
  return undefined;
}

async function filesOf(path: string): Promise<CheckpointInspection['files']> {
  return naming(path, async () => {
    const info = await stat(path);
    const name = path.replace(/^.*\//, '');
    if (!info.isDirectory()) return [{ name, bytes: info.size, sha256: await readDigest(path) }];
    const digests = await readDigestList(path);
    const names = await plainFiles(path);
    const infos = await Promise.all(names.map((file) => lstat(join(path, file))));
    return names.map((file, i) => ({ name: file, bytes: infos[i].size, sha256: digests?.get(file) ?? null }));
  });
}
