import type { ConfigProblem } from '../../engine/config.ts';
import { type ErrorCode, StudioError } from '../../engine/errors.ts';
import { isFullDisk } from '../db/retry.ts';

/** What the protocol itself refuses, beside the errors of the engine. */
type ProtocolCode = 'unauthorized' | 'unsupported-media-type' | 'method-not-allowed' | 'bad-request';

const STATUS: Readonly<Record<ErrorCode | ProtocolCode, number>> = {
  'bad-request': 400,
  unauthorized: 401,
  'method-not-allowed': 405,
  'unsupported-media-type': 415,
  'invalid-config': 400,
  'not-found': 404,
  'bad-file': 400,
  'bad-data': 400,
  'refused-global': 400,
  'no-adapter': 503,
  'device-lost': 503,
  'out-of-memory': 422,
  'invalid-schedule': 500,
  'peer-lost': 500,
  timeout: 504,
  'non-finite': 500,
  'worker-died': 500,
  conflict: 409,
  forbidden: 403,
  'too-large': 413,
  'port-in-use': 500,
  io: 500,
  internal: 500,
};

/** WebDAV's word for it. */
const DISK_FULL = 507;

/** A request that is refused before anything of ours is asked. */
export class RequestError extends Error {
  override name = 'RequestError';
  constructor(
    readonly code: ProtocolCode,
    message: string,
  ) {
    super(message);
  }
}

export interface ErrorAnswer {
  readonly status: number;
  readonly body: { error: { code: string; message: string; problems?: ConfigProblem[] } };
  /** Nobody foresaw it: it is logged with its stack, and the person is told only that. */
  readonly unforeseen: boolean;
}

/** The answer to an error. Only errors that were written for a person say what happened. */
export function answerFor(error: unknown): ErrorAnswer {
  if (error instanceof RequestError || error instanceof StudioError) {
    const problems = 'details' in error ? (error.details.problems as ConfigProblem[] | undefined) : undefined;
    const { code, message } = error;
    const isFull = error instanceof StudioError && isFullDisk(error);
    const isConfig = Array.isArray(problems) && problems.every((problem) => typeof problem === 'object');
    return {
      status: isFull ? DISK_FULL : STATUS[code],
      body: { error: { code, message, ...(isConfig ? { problems } : {}) } },
      unforeseen: false,
    };
  }
  if (isFullDisk(error))
    return {
      status: DISK_FULL,
      body: {
        error: {
          code: 'io',
          message: 'The disk of the data folder is full. Delete runs or files, or make room there otherwise.',
        },
      },
      unforeseen: false,
    };
  const message = 'The studio failed at this. Its log says why.';
  return { status: 500, body: { error: { code: 'internal', message } }, unforeseen: true };
}
