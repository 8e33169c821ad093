import { stat } from 'node:fs/promises';
import { checkConfig } from '../../../engine/config.ts';
import { StudioError } from '../../../engine/errors.ts';
import { naming } from '../../../engine/node/file-bytes.ts';
import type { BroughtCheckpoints } from '../../checkpoints/brought-checkpoints.ts';
import { ENDING_OF, withoutEnding } from '../../checkpoints/checkpoint-names.ts';
import { verifyInProcess } from '../../checkpoints/checkpoint-process.ts';
import { convertHere } from '../../checkpoints/convert-here.ts';
import { convertedFile } from '../../checkpoints/converted-file.ts';
import { folderArchive } from '../../checkpoints/folder-archive.ts';
import { type BoundedInspection, inspectInProcess, inspectTensorInProcess } from '../../checkpoints/look-in-process.ts';
import {
  type BroughtCheckpointList,
  type CheckpointDetails,
  ConvertBody,
  type ConvertLine,
  RunState,
  type TensorDetails,
  type VerifyLine,
} from '../../contract.ts';
import { quote } from '../../data-folder.ts';
import { measureCheckpoint } from '../../runs/checkpoint-files.ts';
import { withAbsolutePaths } from '../../runs/config-paths.ts';
import { configOf, toRun } from '../../runs/run-store.ts';
import { isFinal } from '../../scheduler/state-machine.ts';
import { readJson } from '../body.ts';
import { RequestError } from '../errors.ts';
import { sendDownload, sendFile } from '../file-response.ts';
import { leaving, sendLines } from '../line-answer.ts';
import type { ApiRequest, Route } from '../router.ts';
import type { Services } from '../services.ts';
import type { CheckpointPlace, FoundCheckpoint } from './checkpoint-places.ts';

const NOT_ENDED = RunState.options.filter((state) => !isFinal(state));
const MAX_READERS = 2;
let reading = 0;

/** The checkpoints there are, and what can be asked of each, whether a run saved it or a person brought it. */
export function checkpointRoutes(
  services: Services,
  brought: BroughtCheckpoints,
  places: readonly CheckpointPlace[],
): Route[] {
  return [...listRoutes(services, brought), ...places.flatMap((place) => routesOf(place, services, brought))];
}

function listRoutes({ store }: Services, brought: BroughtCheckpoints): Route[] {
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
      path: '/checkpoints',
      async handle() {
        const body: BroughtCheckpointList = { checkpoints: await brought.list() };
        return { status: 200, body };
      },
    },
    {
      method: 'DELETE',
      path: '/checkpoints/:name',
      async handle({ params }) {
        const { name, path } = await brought.get(params.name);
        const user = (await store.inStates(NOT_ENDED)).find((row) => {
          const { checkpoint, init } = configOf(row);
          return checkpoint.resume === path || init.from === path;
        });
        if (user)
          throw new StudioError('conflict', `The run ${quote(user.name)} starts from ${name}. Stop it, or let it end.`);
        await brought.delete(name);
        return { status: 204 };
      },
    },
  ];
}

function routesOf(
  { address, find, locate }: CheckpointPlace,
  { folder }: Services,
  brought: BroughtCheckpoints,
): Route[] {
  return [
    {
      method: 'GET',
      path: address,
      async handle(request) {
        await download(request, await find(request.params));
        return 'streamed';
      },
    },
    {
      method: 'GET',
      path: `${address}/details`,
      async handle({ params, response }) {
        const { path, step, sha256 } = await find(params);
        const { config, ...held } = await detailsOf(path, leaving(response));
        const body: CheckpointDetails = { ...held, step, sha256, config: withoutRoot(config, `${folder.root}/`) };
        return { status: 200, body };
      },
    },
    {
      method: 'GET',
      path: `${address}/tensor`,
      async handle({ params, query, response }) {
        const { path } = await find(params);
        const name = query.get('tensor') ?? '';
        const body: TensorDetails = await inspectTensorInProcess(path, name, leaving(response));
        return { status: 200, body };
      },
    },
    {
      method: 'POST',
      path: `${address}/verify`,
      async handle({ response, params }) {
        const path = await locate(params);
        await reader(async () => {
          const lines = verifyInProcess(path, leaving(response));
          await sendLines(lines, response, folder.root, failureOf);
        });
        return 'streamed';
      },
    },
    {
      method: 'POST',
      path: `${address}/convert`,
      async handle({ raw, response, params }) {
        const { kind, ranks, name } = await readJson(raw, ConvertBody);
        if (ranks !== null && kind !== 'sharded')
          throw new RequestError('bad-request', 'ranks is for the kind sharded, a folder.');
        const { path, saved } = await find(params);
        await reader(async () => {
          const wanted = { from: path, kind, ranks: ranks ?? undefined, name: name ?? saved };
          const lines = convertHere(wanted, folder.uploads, brought, leaving(response));
          await sendLines(lines, response, folder.root, failureOf);
        });
        return 'streamed';
      },
    },
  ];
}

/** Of those that were looked at last: a page asks again each time it is opened. */
const MAX_KNOWN = 4;
const known = new Map<string, { readonly stamp: string; readonly inspection: BoundedInspection }>();

async function detailsOf(path: string, signal: AbortSignal): Promise<BoundedInspection> {
  const stamp = (await measureCheckpoint(path))?.stamp;
  const before = known.get(path);
  if (before && before.stamp === stamp) return before.inspection;
  known.delete(path);
  const inspection = await inspectInProcess(path, signal);
  if (stamp !== undefined) known.set(path, { stamp, inspection });
  if (known.size > MAX_KNOWN) known.delete([...known.keys()][0]);
  return inspection;
}

const failureOf = (line: VerifyLine | ConvertLine) => (line.type === 'failed' ? line.error : null);

/** Reading all of a checkpoint takes a disk and a core. */
async function reader(read: () => Promise<void>): Promise<void> {
  if (reading >= MAX_READERS)
    throw new StudioError(
      'conflict',
      `${MAX_READERS} checkpoints are being verified or converted; wait for one to end.`,
    );
  reading++;
  try {
    await read();
  } finally {
    reading--;
  }
}

/** A checkpoint's config as it may be told: its run had absolute paths, and where the data folder lies is nobody's concern. */
function withoutRoot(written: unknown, root: string): unknown {
  // No config at all would be one of nothing but defaults.
  const config = written === null ? null : checkConfig(written).config;
  return config
    ? withAbsolutePaths(config, (path) => (path.startsWith(root) ? path.slice(root.length) : path))
    : written;
}

/** As it is (a folder as one tar), or as the one file that `?as=full` or `?as=safetensors` asks for, made as it is sent. */
async function download(
  { raw, response, query }: ApiRequest,
  { path, kind, sha256, saved }: FoundCheckpoint,
): Promise<void> {
  const as = query.get('as') ?? kind;
  const info = await naming(path, () => stat(path));
  const tag = sha256 ?? `${info.size}-${info.mtimeMs}`;
  if (as === kind) {
    if (!info.isDirectory()) return sendFile(raw, response, { path, name: saved, etag: tag });
    const { bytes, read } = await folderArchive(path);
    return sendDownload(raw, response, { name: `${saved}.tar`, bytes, etag: `${tag}-tar`, read, ranges: true });
  }
  if (as !== 'full' && as !== 'safetensors')
    throw new RequestError('bad-request', 'as is full or safetensors, or left out for the checkpoint as it is.');
  const { bytes, read, close } = await convertedFile(path, as);
  try {
    const name = `${withoutEnding(saved)}${ENDING_OF[as]}`;
    await sendDownload(raw, response, { name, bytes, etag: `${tag}-${as}`, read, ranges: false });
  } finally {
    await close();
  }
}
