import { createHash, randomBytes } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { type FileHandle, link, open, readdir, rm } from 'node:fs/promises';
import type { IncomingMessage } from 'node:http';
import { basename, extname, join } from 'node:path';
import { StudioError } from '../../../engine/errors.ts';
import { DIGEST_SUFFIX } from '../../../engine/node/file-bytes.ts';
import { importArchive, verifyBroughtCheckpoint } from '../../checkpoints/import-checkpoint.ts';
import type { FileList } from '../../contract.ts';
import { PARTIAL_UPLOAD, quote } from '../../data-folder.ts';
import { checkpointBytes } from '../../runs/checkpoint-files.ts';
import { RequestError } from '../errors.ts';
import type { Route } from '../router.ts';
import type { Services } from '../services.ts';

/** What each kind may be called and how large it may be. */
const KINDS: Readonly<Record<string, { readonly extensions: readonly string[]; readonly maxBytes: number }>> = {
  text: { extensions: ['.txt', '.md', '.tokens', '.text'], maxBytes: 2 ** 30 },
  batches: { extensions: ['.json'], maxBytes: 2 ** 28 },
  weights: { extensions: ['.safetensors', '.pt', '.pth', '.ckpt', '.bin'], maxBytes: 2 ** 34 },
  // Looked through before it appears; an archive is of a sharded folder.
  checkpoint: { extensions: ['.safetensors', '.pt', '.pth', '.ckpt', '.bin', '.tar'], maxBytes: 2 ** 36 },
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
      async handle({ raw, query }) {
        const type = (raw.headers['content-type'] ?? '').split(';')[0].trim().toLowerCase();
        if (type === 'application/x-www-form-urlencoded' || type === 'multipart/form-data')
          throw new RequestError('unsupported-media-type', 'Send the bytes of the file as the body, not a form.');
        const kind = query.get('kind') ?? '';
        const brought = query.get('name') ?? '';
        const { name, maxBytes } = checkName(kind, brought);
        if (Number(raw.headers['content-length'] ?? 0) > maxBytes) throw tooLarge(maxBytes);
        if (uploading >= MAX_UPLOADS)
          throw new StudioError('conflict', `${MAX_UPLOADS} uploads are under way; wait for one to end.`);
        uploading++;
        try {
          const check = kind === 'checkpoint' ? verifyBroughtCheckpoint : null;
          const body = name.endsWith('.tar')
            ? await storeArchive(raw, folder.uploads, { name, brought }, maxBytes)
            : await store(raw, folder.uploads, { name, brought }, maxBytes, check);
          return { status: 201, body };
        } finally {
          uploading--;
        }
      },
    },
  ];
}

function checkName(kind: string, name: string): { name: string; maxBytes: number } {
  if (!Object.hasOwn(KINDS, kind))
    throw new RequestError('bad-request', `kind is one of ${Object.keys(KINDS).join(', ')}.`);
  const { extensions, maxBytes } = KINDS[kind];
  if (name === '' || /[/\\\0]/.test(name) || name === '.' || name === '..')
    throw new RequestError('bad-request', 'name is the name of a file, without folders.');
  const extension = extname(name).toLowerCase();
  if (!extensions.includes(extension))
    throw new RequestError('bad-request', `A file of kind ${kind} ends in ${extensions.join(', ')}.`);
  const stem = name
    .slice(0, -extension.length)
    .replaceAll(/[^\p{L}\p{N}._-]+/gu, '-')
    .replace(/^[.-]+/, '')
    .slice(0, 60);
  return { name: `${stem || kind}${extension}`, maxBytes };
}

/** A file as it will be called here, and as the person calls it. */
interface Named {
  readonly name: string;
  readonly brought: string;
}

/** A sharded folder, as one archive. */
async function storeArchive(request: IncomingMessage, folder: string, { name, brought }: Named, maxBytes: number) {
  const draft = join(folder, PARTIAL_UPLOAD + randomBytes(8).toString('hex'));
  const stem = name.slice(0, -'.tar'.length);
  const stored = await naming(draft, brought, () =>
    importArchive(request as AsyncIterable<Buffer>, folder, draft, stem, maxBytes),
  );
  return { path: `uploads/${stored.name}`, bytes: stored.bytes, sha256: stored.sha256 };
}

/** Writes the body under a temporary name and gives it its own when it is whole, on disk and, if need be, checked. */
async function store(
  request: IncomingMessage,
  folder: string,
  { name, brought }: Named,
  maxBytes: number,
  check: ((path: string) => Promise<void>) | null,
) {
  const draft = join(folder, PARTIAL_UPLOAD + randomBytes(8).toString('hex'));
  const file = await open(draft, 'wx', 0o600);
  try {
    const { bytes, sha256 } = await receive(request, file, maxBytes);
    if (bytes === 0) throw new StudioError('bad-file', 'The file is empty.');
    if (check) await naming(draft, brought, () => check(draft));
    const path = `uploads/${await place(draft, folder, name, sha256)}`;
    return { path, bytes, sha256 };
  } finally {
    await file.close();
    await rm(draft, { force: true });
  }
}

/** Errors of reading `draft` name the file as the person does. */
async function naming<T>(draft: string, brought: string, read: () => Promise<T>): Promise<T> {
  try {
    return await read();
  } catch (error) {
    if (!(error instanceof StudioError)) throw error;
    const message = error.message.replaceAll(draft, quote(brought)).replaceAll(basename(draft), quote(brought));
    throw new StudioError(error.code, message, error.details, { cause: error });
  }
}

async function receive(request: IncomingMessage, file: FileHandle, maxBytes: number) {
  const hash = createHash('sha256');
  let bytes = 0;
  for await (const part of request as AsyncIterable<Buffer>) {
    bytes += part.length;
    if (bytes > maxBytes) throw tooLarge(maxBytes);
    hash.update(part);
    await file.write(part);
  }
  await file.sync();
  return { bytes, sha256: hash.digest('hex') };
}

/** Never over another file: the same content keeps the old name, other content gets part of its hash into its own. */
async function place(draft: string, folder: string, name: string, sha256: string): Promise<string> {
  const extension = extname(name);
  const other = `${name.slice(0, -extension.length)}-${sha256.slice(0, 8)}${extension}`;
  for (const candidate of [name, other]) {
    try {
      await link(draft, join(folder, candidate)); // fails where a rename would replace
      return candidate;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
    if ((await digestOf(join(folder, candidate))) === sha256) return candidate;
  }
  throw new StudioError('conflict', `There is another file ${name} already. Give yours another name.`);
}

async function digestOf(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const part of createReadStream(path)) hash.update(part as Buffer);
  return hash.digest('hex');
}

function tooLarge(maxBytes: number): StudioError {
  return new StudioError('too-large', `The file has more than ${maxBytes} bytes.`);
}
