import { open } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { pipeline } from 'node:stream/promises';
import { DATA_POLICY } from './headers.ts';

export interface FileAnswer {
  /** Absolute and confined by the caller. */
  readonly path: string;
  /** As the browser saves it. */
  readonly name: string;
  /** Changes when the bytes do. */
  readonly etag: string;
}

/** Bytes to be saved by the browser, whose number is known before the first is there. */
export interface Download {
  readonly name: string;
  readonly bytes: number;
  /** Changes when the bytes do. */
  readonly etag: string;
  /** Bytes [start, end], both included; `ranges` false: only ever all of them. */
  read(start: number, end: number): AsyncIterable<Uint8Array>;
  readonly ranges: boolean;
}

/** Streams a file as a download; see `sendDownload`. */
export async function sendFile(request: IncomingMessage, response: ServerResponse, file: FileAnswer): Promise<void> {
  const handle = await open(file.path, 'r');
  try {
    const { size } = await handle.stat();
    const read = (start: number, end: number) => handle.createReadStream({ start, end, autoClose: false });
    await sendDownload(request, response, { name: file.name, bytes: size, etag: file.etag, read, ranges: true });
  } finally {
    await handle.close();
  }
}

/**
 * Streams a download, or the part that `Range` asks for; `If-Range` and `If-None-Match` are compared with its tag. A
 * reader that goes away ends the stream; one that ends early breaks the connection, so that a short body is never taken
 * for a whole one.
 */
export async function sendDownload(
  request: IncomingMessage,
  response: ServerResponse,
  { name, bytes: size, etag: tag, read, ranges }: Download,
): Promise<void> {
  const etag = `"${tag}"`;
  response.setHeader('ETag', etag);
  response.setHeader('Accept-Ranges', ranges ? 'bytes' : 'none');
  response.setHeader('Cache-Control', 'private, no-cache');
  response.setHeader('Content-Security-Policy', DATA_POLICY);
  if (request.headers['if-none-match'] === etag) {
    response.writeHead(304).end();
    return;
  }
  response.setHeader('Content-Type', 'application/octet-stream');
  response.setHeader('Content-Disposition', disposition(name));
  const ifRange = request.headers['if-range'];
  const asked = ranges && (ifRange === undefined || ifRange === etag);
  const range = asked ? parseRange(request.headers.range, size) : null;
  if (range === 'unsatisfiable') {
    response.writeHead(416, { 'Content-Range': `bytes */${size}` }).end();
    return;
  }
  const { start, end } = range ?? { start: 0, end: size - 1 };
  const headers = { 'Content-Length': end - start + 1 };
  if (range) response.writeHead(206, { ...headers, 'Content-Range': `bytes ${start}-${end}/${size}` });
  else response.writeHead(200, headers);
  if (request.method === 'HEAD' || size === 0) {
    response.end();
    return;
  }
  // A response gets an error when fewer bytes come than it promised, and takes the connection down with it.
  response.strictContentLength = true;
  await pipeline(read(start, end), response);
}

/**
 * The one range of a `Range` header, both ends included. Null for none, for several and for what is no range: the whole
 * file is then a right answer.
 */
export function parseRange(
  header: string | undefined,
  size: number,
): { readonly start: number; readonly end: number } | 'unsatisfiable' | null {
  const match = /^bytes=(\d{0,15})-(\d{0,15})$/.exec(header?.trim() ?? '');
  if (!match || (match[1] === '' && match[2] === '')) return null;
  if (match[1] === '') {
    const length = Math.min(Number(match[2]), size);
    return length === 0 ? 'unsatisfiable' : { start: size - length, end: size - 1 };
  }
  const start = Number(match[1]);
  const end = match[2] === '' ? size - 1 : Math.min(Number(match[2]), size - 1);
  if (match[2] !== '' && Number(match[2]) < start) return null;
  return start >= size ? 'unsatisfiable' : { start, end };
}

/** As RFC 6266 has it: a plain name for old readers, the true one encoded. */
function disposition(name: string): string {
  const plain = name.replaceAll(/[^A-Za-z0-9._-]/g, '_');
  return `attachment; filename="${plain}"; filename*=UTF-8''${encodeURIComponent(name).replaceAll(/['()*]/g, (c) => `%${c.charCodeAt(0).toString(16)}`)}`;
}
