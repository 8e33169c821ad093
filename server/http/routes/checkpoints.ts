import { stat } from 'node:fs/promises';
import { checkConfig } from '../../../engine/config.ts';
import { inspectCheckpoint, inspectTensor } from '../../../engine/node/inspect-checkpoint.ts';
import { convertedFile } from '../../checkpoints/converted-file.ts';
import { folderArchive } from '../../checkpoints/folder-archive.ts';
import type { CheckpointDetails, TensorDetails } from '../../contract.ts';
import { withAbsolutePaths } from '../../runs/config-paths.ts';
import type { CheckpointRow } from '../../runs/run-store.ts';
import { toRun } from '../../runs/run-store.ts';
import { RequestError } from '../errors.ts';
import { sendDownload, sendFile } from '../file-response.ts';
import type { ApiRequest, Route } from '../router.ts';
import type { Services } from '../services.ts';
import { findCheckpoint } from './find-checkpoint.ts';

/** The checkpoints of a run: their list, what each holds, and each as a download in any form. */
export function checkpointRoutes({ store, folder }: Services): Route[] {
  const find = (params: ApiRequest['params']) => findCheckpoint({ store, folder }, params);

  return [
    {
      method: 'GET',
      path: '/runs/:id/checkpoints',
      async handle({ params }) {
        const { checkpoints } = toRun(await store.get(params.id), await store.checkpoints(params.id));
        return { status: 200, body: { checkpoints } };
      },
    },
    {
      method: 'GET',
      path: '/runs/:id/checkpoints/:name',
      async handle(request) {
        const { row, path } = await find(request.params);
        const { name } = await store.get(row.runId);
        const stem = name.replaceAll(/[^\p{L}\p{N}._-]+/gu, '-').slice(0, 60);
        await download(request, { row, path, saved: `${stem}-${row.name}` });
        return 'streamed';
      },
    },
    {
      method: 'GET',
      path: '/runs/:id/checkpoints/:name/details',
      async handle({ params }) {
        const { row, path } = await find(params);
        const { config, ...held } = await inspectCheckpoint(path);
        const body: CheckpointDetails = {
          ...held,
          step: row.step,
          sha256: row.sha256,
          config: withoutRoot(config, `${folder.root}/`),
        };
        return { status: 200, body };
      },
    },
    {
      method: 'GET',
      path: '/runs/:id/checkpoints/:name/tensor',
      async handle({ params, query }) {
        const { path } = await find(params);
        const body: TensorDetails = await inspectTensor(path, query.get('tensor') ?? '');
        return { status: 200, body };
      },
    },
  ];
}

/** A checkpoint's config as it may be told: its run had absolute paths, and where the data folder lies is nobody's concern. */
function withoutRoot(written: unknown, root: string): unknown {
  const { config } = checkConfig(written);
  return config
    ? withAbsolutePaths(config, (path) => (path.startsWith(root) ? path.slice(root.length) : path))
    : written;
}

const SUFFIXES: Readonly<Record<string, string>> = { full: '.ckpt', safetensors: '.safetensors' };

/** As it is (a folder as one tar), or as the one file that `?as=full` or `?as=safetensors` asks for, made as it is sent. */
async function download(
  { raw, response, query }: ApiRequest,
  { row, path, saved }: { row: CheckpointRow; path: string; saved: string },
): Promise<void> {
  const as = query.get('as') ?? row.format;
  if (as === row.format) {
    if (!(await stat(path)).isDirectory()) return sendFile(raw, response, { path, name: saved, sha256: row.sha256 });
    const { bytes, read } = await folderArchive(path);
    return sendDownload(raw, response, { name: `${saved}.tar`, bytes, etag: `${row.sha256}-tar`, read, ranges: true });
  }
  if (as !== 'full' && as !== 'safetensors')
    throw new RequestError('bad-request', 'as is full or safetensors, or left out for the checkpoint as it is.');
  const { bytes, read, close } = await convertedFile(path, as);
  try {
    const name = `${saved.replace(/\.(ckpt|safetensors)$/, '')}${SUFFIXES[as]}`;
    await sendDownload(raw, response, { name, bytes, etag: `${row.sha256}-${as}`, read, ranges: false });
  } finally {
    await close();
  }
}
