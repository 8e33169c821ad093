/** What went wrong, as a word that programs can test. The HTTP status and exit code of each follow from it. */
export type ErrorCode =
  | 'invalid-config'
  | 'not-found'
  | 'bad-file'
  | 'bad-data'
  | 'refused-global'
  | 'no-adapter'
  | 'device-lost'
  | 'out-of-memory'
  | 'invalid-schedule'
  | 'peer-lost'
  | 'timeout'
  | 'non-finite'
  | 'worker-died'
  | 'conflict'
  | 'forbidden'
  | 'too-large'
  | 'port-in-use'
  | 'io'
  | 'internal';

/**
 * Every error that a person may see. `message` names the person's own setting or file and says what to do;
 * `details` is plain data for programs (a list of fields, a rank, byte counts).
 */
export class StudioError extends Error {
  constructor(
    readonly code: ErrorCode,
    message: string,
    readonly details: Readonly<Record<string, unknown>> = {},
    options?: ErrorOptions,
  ) {
    super(message, options);
    this.name = 'StudioError';
  }
}
