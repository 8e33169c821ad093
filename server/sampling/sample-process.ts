import { type ChildProcess, fork } from 'node:child_process';
import { on } from 'node:events';
import { createRequire } from 'node:module';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { counted } from '../../engine/counted.ts';
import type { SampleRequest } from '../../engine/node/sample-checkpoint.ts';
import { SampleLine } from '../contract.ts';
import { workerEnvironment } from '../workers/environment.ts';
import { LastLines } from '../workers/last-lines.ts';

/** The time that a sampling may take: from one token to the next, the first with reading the checkpoint, and in all. */
export interface SamplingPatience {
  readonly tokenMs: number;
  readonly allMs: number;
}
export const SAMPLING_PATIENCE: SamplingPatience = { tokenMs: 120_000, allMs: 600_000 };

const WORKER = fileURLToPath(new URL('./sample-worker.ts', import.meta.url));
const projectFolder = fileURLToPath(new URL('../../', import.meta.url));

/**
 * Samples in a process of its own and gives its lines; the last one is always an end, `timeout` and `worker-died` among its
 * errors. The process is gone when this returns, also where `signal` or whoever reads stops it.
 */
export async function* sampleInProcess(
  request: SampleRequest,
  signal: AbortSignal,
  patience: SamplingPatience = SAMPLING_PATIENCE,
): AsyncGenerator<SampleLine, void, void> {
  const loader = pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;
  const child = fork(WORKER, [], {
    cwd: projectFolder,
    env: workerEnvironment(),
    execArgv: ['--import', loader],
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  });
  const last = new LastLines();
  child.stderr?.setEncoding('utf8').on('data', (text: string) => last.push(text));
  const gone = new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(`could not be started: ${error.message}`));
    child.once('exit', (code, by) => resolve(how(code, by)));
  });
  // Not its exit: what it said last may come after that.
  const ended = new AbortController();
  child.once('disconnect', () => ended.abort());
  child.once('error', () => ended.abort());
  const until = performance.now() + patience.allMs;
  let tokens = 0;
  try {
    child.send(request, () => undefined);
    const lines = messages(child, AbortSignal.any([signal, ended.signal]));
    for (;;) {
      const next = await within(lines.next(), Math.min(patience.tokenMs, until - performance.now()));
      if (signal.aborted) return;
      if (next === 'late') {
        yield failure('timeout', late(tokens, request.adapter, patience, performance.now() >= until));
        return;
      }
      if (next.done) {
        yield failure('worker-died', `The process that samples ${await gone}.${quote(last)}`);
        return;
      }
      yield next.value;
      if (next.value.type === 'end') return;
      if (next.value.type === 'token') tokens++;
    }
  } finally {
    child.kill('SIGKILL');
    await gone;
  }
}

/** What the child says, until it ends or `signal` says so; what is no line of ours is skipped. */
async function* messages(child: ChildProcess, signal: AbortSignal): AsyncGenerator<SampleLine, void, void> {
  try {
    for await (const [raw] of on(child, 'message', { signal })) {
      const line = SampleLine.safeParse(raw);
      if (line.success) yield line.data;
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

async function within<T>(promise: Promise<T>, ms: number): Promise<T | 'late'> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<'late'>((resolve) => {
    timer = setTimeout(() => resolve('late'), Math.max(0, ms));
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

function failure(code: string, message: string): SampleLine {
  return { type: 'end', text: '', error: { code, message } };
}

function late(
  tokens: number,
  adapter: string | undefined,
  { tokenMs, allMs }: SamplingPatience,
  inAll: boolean,
): string {
  const way =
    adapter === 'interpreter' || adapter === undefined ? 'choose a GPU as the adapter' : 'ask for fewer tokens';
  const took = inAll ? `${allMs / 1000} s were not enough` : `the next one took more than ${tokenMs / 1000} s`;
  return `After ${counted(tokens, 'token')} ${took}, so it was ended: ${way}, or shorten the prompt.`;
}

function how(code: number | null, signal: NodeJS.Signals | null): string {
  if (signal === 'SIGKILL') return 'was ended by somebody, or the system ran out of memory';
  return signal === null ? `ended with exit code ${code}` : `ended with signal ${signal}`;
}

function quote(last: LastLines): string {
  const lines = last.lines();
  return lines.length ? ` Its last lines:\n${lines.join('\n')}` : '';
}
