import { stat } from 'node:fs/promises';
import { checkConfig, type ExperimentConfig } from '../../../engine/config.ts';
import { StudioError } from '../../../engine/errors.ts';
import { plainFiles } from '../../../engine/node/checkpoint-path.ts';
import { naming } from '../../../engine/node/file-bytes.ts';
import type { BroughtCheckpoints } from '../../checkpoints/brought-checkpoints.ts';
import { safeStem } from '../../checkpoints/checkpoint-names.ts';
import { inspectInProcess } from '../../checkpoints/look-in-process.ts';
import type { CheckpointKind } from '../../contract.ts';
import { confine, isInside, quote } from '../../data-folder.ts';
import { withAbsolutePaths } from '../../runs/config-paths.ts';
import { configOf } from '../../runs/run-store.ts';
import type { ApiRequest } from '../router.ts';
import type { Services } from '../services.ts';

/** A checkpoint that an address named, wherever it came from. */
export interface FoundCheckpoint {
  readonly name: string;
  /** Absolute and confined; a folder has nothing but plain files. */
  readonly path: string;
  readonly kind: CheckpointKind;
  /** Steps done, where somebody knows. */
  readonly step: number | null;
  /** Of the file or of a folder's list of digests; null where none is beside it. */
  readonly sha256: string | null;
  /** What a download is called, its ending as the checkpoint's. */
  readonly saved: string;
  /** How the model is made, its paths absolute, and how many parameters it has. */
  origin(): Promise<{ readonly config: ExperimentConfig | null; readonly params: number }>;
}

/** Where checkpoints are, and how the one is found that an address names. Below every address the same can be asked. */
export interface CheckpointPlace {
  readonly address: string;
  /** Throws `not-found`, `forbidden`, and `bad-file` for a folder with a link in it. */
  find(params: ApiRequest['params']): Promise<FoundCheckpoint>;
  /** Its path alone, also of one that cannot be opened: which of its files is damaged can still be asked. */
  locate(params: ApiRequest['params']): Promise<string>;
}

/** Those of a run, and those that were brought. */
export function checkpointPlaces(services: Services, brought: BroughtCheckpoints): CheckpointPlace[] {
  return [
    {
      address: '/runs/:id/checkpoints/:name',
      find: ({ id, name }) => findOfRun(services, id, name),
      locate: async ({ id, name }) => (await findOfRun(services, id, name)).path,
    },
    {
      address: '/checkpoints/:name',
      find: ({ name }) => findBrought(services, brought, name),
      locate: async ({ name }) => confineCheckpoint(services.folder.root, 'uploads', (await brought.get(name)).name),
    },
  ];
}

/** The name is looked up in the listing, never made into a path; what is there may still be somebody's link. */
async function findOfRun({ store, folder }: Services, id: string, wanted: string): Promise<FoundCheckpoint> {
  const row = await store.findCheckpoint(id, wanted);
  if (!row) throw new StudioError('not-found', `This run has no checkpoint ${quote(wanted)}.`);
  const { runId, name, step, sha256 } = row;
  const path = await confineCheckpoint(folder.root, `runs/${runId}/checkpoints`, name);
  const run = await store.get(runId);
  const config = withAbsolutePaths(configOf(run), (inside) => `${folder.root}/${inside}`);
  return {
    name,
    path,
    kind: row.format as CheckpointKind,
    step,
    sha256,
    saved: `${safeStem(run.name, 'run')}-${name}`,
    origin: async () => ({ config, params: Number(run.params ?? 0) }),
  };
}

async function findBrought(
  { folder }: Services,
  brought: BroughtCheckpoints,
  wanted: string,
): Promise<FoundCheckpoint> {
  const { name, holds } = await brought.getOpened(wanted);
  const path = await confineCheckpoint(folder.root, 'uploads', name);
  return {
    name,
    path,
    kind: holds.kind,
    step: holds.step,
    sha256: await brought.digest(name),
    saved: name,
    origin: async () => {
      const written = (await inspectInProcess(path, new AbortController().signal)).config;
      const config = written === null ? null : checkConfig(written).config;
      return { config: config ? await withOwnData(config, folder.root) : null, params: holds.params };
    },
  };
}

async function confineCheckpoint(root: string, place: string, name: string): Promise<string> {
  const path = await confine(root, `${place}/${name}`);
  if (!isInside(`${root}/${place}`, path))
    throw new StudioError('forbidden', `The checkpoint ${quote(name)} leaves its folder.`);
  if ((await naming(path, () => stat(path))).isDirectory()) await plainFiles(path);
  return path;
}

/**
 * The config in a checkpoint that somebody brought, as far as it may be followed: data outside of this studio's folder, also
 * through a link, is not read for it. Without its text the model's words are not known, as with a batches file.
 */
async function withOwnData(config: ExperimentConfig, root: string): Promise<ExperimentConfig> {
  if (!('path' in config.data)) return config;
  const { path } = config.data;
  try {
    const own = await confine(root, path.startsWith(`${root}/`) ? path.slice(root.length + 1) : path);
    return { ...config, data: { ...config.data, path: own } };
  } catch (error) {
    if (!(error instanceof StudioError)) throw error;
    return { ...config, data: { kind: 'batches', path, seed: config.data.seed } };
  }
}
