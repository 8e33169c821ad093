import type { IncomingMessage } from 'node:http';
import type { z } from 'zod';
import { StudioError } from '../../engine/errors.ts';
import { schemaMessage } from '../../engine/schema-messages.ts';
import { quote } from '../data-folder.ts';
import { RequestError } from './errors.ts';

const MAX_JSON_BYTES = 1024 * 1024;
/** A body that comes by drops does not keep a connection. */
const BODY_MS = 30_000;
const MAX_DEPTH = 64;
/** Keys that change what an object is when somebody merges it. */
const FORBIDDEN_KEYS = new Set(['__proto__', 'constructor', 'prototype']);

/** The bytes of a request, refused with `too-large` as soon as they are more than `maxBytes`. */
async function readBody(request: IncomingMessage, maxBytes: number): Promise<Buffer> {
  const tooLarge = () => new StudioError('too-large', `The request has more than ${maxBytes} bytes.`);
  if (Number(request.headers['content-length'] ?? 0) > maxBytes) throw tooLarge();
  const deadline = setTimeout(() => request.destroy(), BODY_MS);
  try {
    const parts: Buffer[] = [];
    let bytes = 0;
    for await (const part of request as AsyncIterable<Buffer>) {
      bytes += part.length;
      if (bytes > maxBytes) throw tooLarge();
      parts.push(part);
    }
    return Buffer.concat(parts);
  } finally {
    clearTimeout(deadline);
  }
}

/**
 * The JSON body of a request as `schema` has it. Only application/json: other types can be sent by any page without
 * asking. Throws what the table of errors turns into 400, 413 or 415.
 */
export async function readJson<T>(request: IncomingMessage, schema: z.ZodType<T>): Promise<T> {
  const type = (request.headers['content-type'] ?? '').split(';')[0].trim().toLowerCase();
  if (type !== 'application/json')
    throw new RequestError('unsupported-media-type', 'Send JSON, with "Content-Type: application/json".');
  const text = (await readBody(request, MAX_JSON_BYTES)).toString('utf8');
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new RequestError('bad-request', 'The body is not JSON.');
  }
  checkTree(value);
  const parsed = schema.safeParse(value, { reportInput: true });
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const said =
    issue.code === 'unrecognized_keys'
      ? `has a key ${quote(issue.keys[0])}, which this address does not take`
      : schemaMessage(issue);
  throw new RequestError('bad-request', `${issue.path.join('.') || 'The body'}: ${said}.`);
}

/** Refuses deep trees and dangerous keys. A loop, because what it looks at may be too deep for recursion. */
function checkTree(root: unknown): void {
  let level: unknown[] = [root];
  for (let depth = 0; level.length; depth++) {
    if (depth > MAX_DEPTH) throw new RequestError('bad-request', `The body is nested deeper than ${MAX_DEPTH} levels.`);
    const next: unknown[] = [];
    for (const value of level) {
      if (typeof value !== 'object' || value === null) continue;
      for (const key of Object.keys(value)) {
        if (FORBIDDEN_KEYS.has(key))
          throw new RequestError('bad-request', `The body has the key ${key}, which nothing here has.`);
        next.push((value as Record<string, unknown>)[key]);
      }
    }
    level = next;
  }
}
