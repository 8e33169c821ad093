import { randomBytes } from 'node:crypto';
import { link, lstat, readdir, rm } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { StudioError } from '../../../engine/errors.ts';
import { sha256OfFile } from '../../../engine/node/digested-file.ts';
import { absent, DIGEST_SUFFIX } from '../../../engine/node/file-bytes.ts';
import { CHECKPOINT_ENDINGS, safeStem } from '../../checkpoints/checkpoint-names.ts';
import { importCheckpoint, receiveFile } from '../../checkpoints/import-checkpoint.ts';
import type { FileList } from '../../contract.ts';
import { PARTIAL_UPLOAD } from '../../data-folder.ts';
import { checkpointBytes } from '../../runs/checkpoint-files.ts';
import { RequestError } from '../errors.ts';
import { leaving } from '../line-answer.ts';
import type { Route } from '../router.ts';
import type { Services } from '../services.ts';

interface Kind {
  readonly endings: readonly string[];
  readonly maxBytes: number;
  /** Read through before it appears. */
  readonly isCheckpoint: boolean;
}

/** What each kind may be called and how large it may be. */
const KINDS: Readonly<Record<string, Kind>> = {
  text: { endings: ['.txt', '.md', '.tokens', '.text'], maxBytes: 2 ** 30, isCheckpoint: false },
  batches: { endings: ['.json'], maxBytes: 2 ** 28, isCheckpoint: false },
  weights: { endings: CHECKPOINT_ENDINGS, maxBytes: 2 ** 34, isCheckpoint: true },
  // An archive is of a sharded folder.
  checkpoint: { endings: [...CHECKPOINT_ENDINGS, '.tar'], maxBytes: 2 ** 36, isCheckpoint: true },
};
const MAX_UPLOADS = 4;

let uploading = 0;

/** Bringing files into the data folder, and what is there. */
export function fileRoutes({ folder }: Services): Route[] {
  return [
    {
      method: 'GET',
      path: '/files',
      async handle() {
        const all = await readdir(folder.uploads);
        const names = all.filter((name) => !name.startsWith('.') && !name.endsWith(DIGEST_SUFFIX)).sort();
        const files = await Promise.all(
          names.map(async (name) => ({
            path: `uploads/${name}`,
            bytes: await checkpointBytes(join(folder.uploads, name)),
          })),
        );
        const body: FileList = { files };
        return { status: 200, body };
      },
    },
    {
      method: 'POST',
      path: '/files',
      async handle({ raw, response, query }) {
        const type = (raw.headers['content-type'] ?? '').split(';')[0].trim().toLowerCase();
        if (type === 'application/x-www-form-urlencoded' || type === 'multipart/form-data')
          throw new RequestError('unsupported-media-type', 'Send the bytes of the file as the body, not a form.');
        const kind = query.get('kind') ?? '';
        const brought = query.get('name') ?? '';
        const { name, maxBytes, isCheckpoint } = checkName(kind, brought);
        if (Number(raw.headers['content-length'] ?? 0) > maxBytes)
          throw new StudioError('too-large', `The file has more than ${maxBytes} bytes.`);
        if (uploading >= MAX_UPLOADS)
          throw new StudioError('conflict', `${MAX_UPLOADS} uploads are under way; wait for one to end.`);
        uploading++;
        try {
          const source = raw as AsyncIterable<Buffer>;
          const signal = leaving(response);
          const { name: placed, ...stored } = isCheckpoint
            ? await importCheckpoint({ source, brought, name, maxBytes, signal }, folder.uploads)
            : await store(source, folder.uploads, name, maxBytes);
          return { status: 201, body: { path: `uploads/${placed}`, ...stored } };
        } finally {
          uploading--;
        }
      },
    },
  ];
}

function checkName(kind: string, name: string): { name: string } & Kind {
  if (!Object.hasOwn(KINDS, kind))
    throw new RequestError('bad-request', `kind is one of ${Object.keys(KINDS).join(', ')}.`);
  const { endings } = KINDS[kind];
  if (name === '' || /[/\\\0]/.test(name) || name === '.' || name === '..')
    throw new RequestError('bad-request', 'name is the name of a file, without folders.');
  const ending = extname(name).toLowerCase();
  if (!endings.includes(ending))
    throw new RequestError('bad-request', `A file of kind ${kind} ends in ${endings.join(', ')}.`);
  return { ...KINDS[kind], name: `${safeStem(name.slice(0, -ending.length), kind)}${ending}` };
}

/** Writes the body under a temporary name and gives it its own when it is whole and on disk. */
async function store(source: AsyncIterable<Buffer>, folder: string, name: string, maxBytes: number) {
  const draft = join(folder, PARTIAL_UPLOAD + randomBytes(8).toString('hex'));
  try {
    const { bytes, sha256 } = await receiveFile(source, draft, maxBytes);
    return { name: await place(draft, folder, name, sha256), bytes, sha256 };
  } finally {
    await rm(draft, { force: true });
  }
}

/** Never over another file: the same content keeps the old name, other content gets part of its hash into its own. */
async function place(draft: string, folder: string, name: string, sha256: string): Promise<string> {
  const extension = extname(name);
  const other = `${name.slice(0, -extension.length)}-${sha256.slice(0, 8)}${extension}`;
  for (const candidate of [name, other]) {
    const path = join(folder, candidate);
    try {
      await link(draft, path); // fails where a rename would replace
      return candidate;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
    // A checkpoint folder may be called so too.
    if ((await lstat(path).catch(absent))?.isFile() && (await sha256OfFile(path)) === sha256) return candidate;
  }
  throw new StudioError('conflict', `There is another file ${name} already. Give yours another name.`);
}
