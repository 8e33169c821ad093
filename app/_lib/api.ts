import type { z } from 'zod';
import type {
  BroughtCheckpoint,
  BroughtCheckpointList,
  CheckpointDetails,
  Comparison,
  ConvertBody,
  ConvertLine,
  CorpusInfo,
  DeviceList,
  ErrorBody,
  FileList,
  QuickStart,
  Run,
  RunList,
  SampleBody,
  SampleLine,
  TensorDetails,
  Trace,
  TraceList,
  UploadedFile,
  VerifyLine,
} from '../../server/contract.ts';
import type { CheckpointRef } from './checkpoint-ref.ts';
import type { EventSlice } from './run-follower.ts';

/** Everything the pages ask of /api/v1, typed by the server's contract. */

export type Corpus = z.infer<typeof CorpusInfo>;
export type Devices = z.infer<typeof DeviceList>;
export type RunsPage = z.infer<typeof RunList>;
export type Upload = z.infer<typeof UploadedFile>;
type Problem = NonNullable<z.infer<typeof ErrorBody>['error']['problems']>[number];

/** An answer that was not a success. `problems` are fields of the config, by dotted path. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly problems: readonly Problem[] = [],
  ) {
    super(message);
    this.name = 'ApiError';
  }
}

const BASE = '/api/v1';
/** Preparing a corpus or finding adapters on a slow machine may take this long; anything else is far quicker. */
const TIMEOUT_MS = 120_000;
/** A checkpoint may be large and the way to the studio slow. */
const UPLOAD_TIMEOUT_MS = 6 * 3_600_000;

async function ask<T>(path: string, init: RequestInit = {}, timeoutMs = TIMEOUT_MS): Promise<T> {
  const timeout = AbortSignal.timeout(timeoutMs);
  const signal = init.signal ? AbortSignal.any([init.signal, timeout]) : timeout;
  let response: Response;
  try {
    response = await fetch(`${BASE}${path}`, { ...init, signal });
  } catch (cause) {
    if (init.signal?.aborted) throw cause;
    const message = timeout.aborted
      ? 'The studio did not answer in time. Check that its process is not stuck, then reload.'
      : 'The studio does not answer. Check that it is still running where you started it; this page tries again.';
    throw new ApiError(0, 'unreachable', message);
  }
  if (!response.ok) throw await toApiError(response);
  return (response.status === 204 ? null : await response.json()) as T;
}

async function toApiError(response: Response): Promise<ApiError> {
  try {
    const { error } = (await response.json()) as z.infer<typeof ErrorBody>;
    return new ApiError(response.status, error.code, error.message, error.problems ?? []);
  } catch {
    return new ApiError(response.status, 'internal', `The studio answered ${response.status} without saying why.`);
  }
}

const json = (body: unknown): RequestInit => ({
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify(body),
});
const runPath = (id: string) => `/runs/${encodeURIComponent(id)}`;

export const listRuns = (signal?: AbortSignal) => ask<RunsPage>('/runs', { signal });
export const getRun = (id: string, signal?: AbortSignal) => ask<Run>(runPath(id), { signal });
export const createRun = (config: unknown, group: string | null = null) => ask<Run>('/runs', json({ config, group }));
export const stopRun = (id: string) => ask<Run>(`${runPath(id)}/stop`, json({}));
export const saveRun = (id: string) => ask<Run>(`${runPath(id)}/save`, json({}));
/** Asks for a trace of the next step; which there are, each to draw, and as a file for ui.perfetto.dev. */
export const traceRun = (id: string) => ask<Run>(`${runPath(id)}/trace`, json({}));
export const listTraces = (id: string, signal?: AbortSignal) => ask<TraceList>(`${runPath(id)}/traces`, { signal });
export const getTrace = (id: string, step: number, signal?: AbortSignal) =>
  ask<Trace>(`${runPath(id)}/traces/${step}`, { signal });
export const traceDownloadUrl = (id: string, step: number) => `${BASE}${runPath(id)}/traces/${step}?as=chrome`;
export const deleteRun = (id: string) => ask<null>(runPath(id), { method: 'DELETE' });
export const listDevices = (signal?: AbortSignal) => ask<Devices>('/devices', { signal });
/** Has an adapter's rates measured once nothing runs and the machine is quiet; the list of devices says how far that is. */
export const calibrateAdapter = (id: string) =>
  ask<Devices['adapters'][number]['calibration']>(`/devices/${encodeURIComponent(id)}/calibrate`, { method: 'POST' });

/** Queues the demonstration: DDP and FULL_SHARD on the default corpus. */
export const quickStart = () => ask<QuickStart>('/quick-start', json({}));

export const getEvents = (id: string, afterSeq: number, signal: AbortSignal) =>
  ask<EventSlice>(`${runPath(id)}/events?after=${afterSeq}&limit=2000`, { signal });

export const compareRuns = (ids: readonly string[], signal?: AbortSignal) =>
  ask<Comparison>(`/compare?ids=${ids.map(encodeURIComponent).join(',')}`, { signal });

/** Vocabulary and size of a corpus; the first call for one prepares it. */
export function getCorpus(
  corpus: { kind: string; path: string | null; blockSize: number; tokenizer?: string },
  signal?: AbortSignal,
): Promise<Corpus> {
  const query = new URLSearchParams({ kind: corpus.kind, blockSize: String(corpus.blockSize) });
  if (corpus.path) query.set('path', corpus.path);
  if (corpus.tokenizer) query.set('tokenizer', corpus.tokenizer);
  return ask<Corpus>(`/corpora?${query}`, { signal });
}

/** Of a file on its way: the bytes sent so far; once these are all, the studio reads it through. */
export type OnSent = (sentBytes: number) => void;

/** Sends a file to the data folder. The answer's `path` is what a config points at. Aborting `signal` leaves nothing there. */
export function uploadFile(
  kind: 'text' | 'batches' | 'checkpoint',
  file: File,
  { signal, onSent }: { signal?: AbortSignal; onSent?: OnSent } = {},
): Promise<Upload> {
  const query = new URLSearchParams({ kind, name: file.name });
  // fetch does not tell how much was sent.
  const request = new XMLHttpRequest();
  return new Promise((resolve, reject) => {
    const abort = () => request.abort();
    signal?.addEventListener('abort', abort, { once: true });
    request.open('POST', `${BASE}/files?${query}`);
    request.setRequestHeader('content-type', 'application/octet-stream');
    request.timeout = UPLOAD_TIMEOUT_MS;
    request.responseType = 'text';
    request.upload.onprogress = ({ loaded }) => onSent?.(loaded);
    request.onload = () =>
      void (async () => {
        const response = new Response(request.responseText, { status: request.status });
        if (response.ok) resolve((await response.json()) as Upload);
        else reject(await toApiError(response));
      })();
    request.onabort = () => reject(new DOMException('The upload was cancelled.', 'AbortError'));
    request.ontimeout = () => reject(new ApiError(0, 'unreachable', 'The upload took longer than six hours.'));
    request.onerror = () =>
      reject(
        new ApiError(0, 'unreachable', 'The upload broke off. Check that the studio is still running, then try again.'),
      );
    request.onloadend = () => signal?.removeEventListener('abort', abort);
    if (signal?.aborted) request.abort();
    else request.send(file);
  });
}

/** Checkpoints that were brought, newest first. */
export const listBrought = (signal?: AbortSignal) => ask<BroughtCheckpointList>('/checkpoints', { signal });
export const deleteBrought = (name: string) =>
  ask<null>(`/checkpoints/${encodeURIComponent(name)}`, { method: 'DELETE' });
export type Brought = BroughtCheckpoint;

const checkpointPath = ({ runId, name }: CheckpointRef) =>
  `${runId === null ? '' : runPath(runId)}/checkpoints/${encodeURIComponent(name)}`;

/**
 * Where a checkpoint is downloaded from: a plain link, so that the browser streams and resumes it. As it is, a folder as
 * one tar, or as one file of another form.
 */
export const checkpointUrl = (checkpoint: CheckpointRef, as: 'full' | 'safetensors' | null = null) =>
  `${BASE}${checkpointPath(checkpoint)}${as === null ? '' : `?as=${as}`}`;

/** What a checkpoint holds. */
export const getCheckpoint = (checkpoint: CheckpointRef, signal?: AbortSignal) =>
  ask<CheckpointDetails>(`${checkpointPath(checkpoint)}/details`, { signal });

/** What the elements of one of its tensors are like: all of them are read for it. */
export const getTensor = (checkpoint: CheckpointRef, tensor: string, signal?: AbortSignal) =>
  ask<TensorDetails>(`${checkpointPath(checkpoint)}/tensor?tensor=${encodeURIComponent(tensor)}`, { signal });

/** What is asked of a checkpoint and answered line by line. */
interface LineRequest<Body> {
  readonly checkpoint: CheckpointRef;
  readonly body: Body;
  /** Aborting it ends the work too. */
  readonly signal: AbortSignal;
}

/** Continues a text: `onLine` gets each line as it is drawn, the last an end. */
export const sampleCheckpoint = (request: LineRequest<SampleBody>, onLine: (line: SampleLine) => void) =>
  askLines<SampleLine>('sample', request, ({ type }) => type === 'end', onLine);

/** Reads all of it again: how far that is, each file, and what came of it. */
export const verifyCheckpoint = (request: LineRequest<object>, onLine: (line: VerifyLine) => void) =>
  askLines<VerifyLine>('verify', request, ({ type }) => type === 'verified' || type === 'failed', onLine);

/** Writes it in another form beside those that were brought. */
export const convertCheckpoint = (request: LineRequest<ConvertBody>, onLine: (line: ConvertLine) => void) =>
  askLines<ConvertLine>('convert', request, ({ type }) => type === 'converted' || type === 'failed', onLine);

/** Throws ApiError for what is refused, and when the answer breaks off before its last line. */
async function askLines<Line>(
  action: string,
  { checkpoint, body, signal }: LineRequest<unknown>,
  isLast: (line: Line) => boolean,
  onLine: (line: Line) => void,
): Promise<void> {
  const broken = () =>
    new ApiError(0, 'unreachable', 'The studio broke off. Check that it is still running, then try again.');
  const response = await fetch(`${BASE}${checkpointPath(checkpoint)}/${action}`, { ...json(body), signal }).catch(
    (cause) => {
      throw signal.aborted ? cause : broken();
    },
  );
  if (!response.ok || !response.body) throw await toApiError(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let ended = false;
  for (;;) {
    const { done, value } = await reader.read().catch((cause) => {
      throw signal.aborted ? cause : broken();
    });
    if (done) break;
    const lines = (rest + value).split('\n');
    rest = lines.pop() ?? '';
    for (const text of lines) {
      const line = JSON.parse(text) as Line;
      ended = isLast(line);
      onLine(line);
    }
  }
  if (!ended) throw broken();
}

/** Every step of every rank as CSV, made by the server as it is read. */
export const stepsCsvUrl = (id: string) => `${BASE}${runPath(id)}/steps.csv`;

/** What was uploaded before. */
export const listFiles = (signal?: AbortSignal) => ask<FileList>('/files', { signal });
