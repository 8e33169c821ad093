import { type ChildProcess, fork } from 'node:child_process';
import { on } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { fileURLToPath, pathToFileURL } from 'node:url';
import type { z } from 'zod';
import { workerEnvironment } from '../workers/environment.ts';
import { LastLines } from '../workers/last-lines.ts';

/** A process that is told one thing, says lines and ends. */
export interface Child<Line> {
  /** Its source file. */
  readonly entry: string;
  readonly line: z.ZodType<Line>;
  /** Of the lines that it says; nothing is read after the last. */
  isLast(line: Line): boolean;
  /** What it may have resident; beyond, it is ended. */
  readonly memoryBytes?: number;
  /** The time until the next line; asked for each. */
  waitMs(): number;
}

/** Why there are no more lines. `died`: in words that follow "the process". */
export type ChildEnd =
  | { readonly how: 'done' | 'left' | 'late' | 'too-large' }
  | { readonly how: 'died'; readonly said: string };

const projectFolder = fileURLToPath(new URL('../../', import.meta.url));
const MEMORY_LOOK_MS = 100;
/** What Linux counts resident memory in, on x64. */
const PAGE_BYTES = 4096;

/**
 * Starts the child, tells it `request` and gives its lines; what is no line of ours is skipped. The process is gone when
 * this returns, also where `signal` or whoever reads stops it.
 */
export async function* childLines<Line>(
  child: Child<Line>,
  request: unknown,
  signal: AbortSignal,
): AsyncGenerator<Line, ChildEnd, void> {
  const loader = pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;
  const started = fork(child.entry, [], {
    cwd: projectFolder,
    env: workerEnvironment(),
    execArgv: ['--import', loader],
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  });
  const last = new LastLines();
  started.stderr?.setEncoding('utf8').on('data', (text: string) => last.push(text));
  const gone = new Promise<string>((resolve) => {
    started.once('error', (error) => resolve(`could not be started: ${error.message}`));
    started.once('exit', (code, by) => resolve(how(code, by)));
  });
  // Not its exit: what it said last may come after that.
  const ended = new AbortController();
  started.once('disconnect', () => ended.abort());
  started.once('error', () => ended.abort());
  const grown = new AbortController();
  const watch = child.memoryBytes ? watchMemory(started, child.memoryBytes, grown) : undefined;
  try {
    started.send(request as object, () => undefined);
    const lines = messages(started, child, AbortSignal.any([signal, ended.signal, grown.signal]));
    for (;;) {
      const next = await within(lines.next(), child.waitMs());
      if (signal.aborted) return { how: 'left' };
      if (next === 'late') return { how: 'late' };
      if (grown.signal.aborted) return { how: 'too-large' };
      if (next.done) return { how: 'died', said: `${await gone}.${quote(last)}` };
      yield next.value;
      if (child.isLast(next.value)) return { how: 'done' };
    }
  } finally {
    clearInterval(watch);
    started.kill('SIGKILL');
    await gone;
  }
}

async function* messages<Line>(
  started: ChildProcess,
  { line }: Child<Line>,
  signal: AbortSignal,
): AsyncGenerator<Line, void, void> {
  try {
    for await (const [raw] of on(started, 'message', { signal })) {
      const read = line.safeParse(raw);
      if (read.success) yield read.data;
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

function watchMemory({ pid }: ChildProcess, mostBytes: number, grown: AbortController): NodeJS.Timeout {
  return setInterval(async () => {
    // Gone by now, it has none.
    const statm = await readFile(`/proc/${pid}/statm`, 'utf8').catch(() => '');
    if (Number(statm.split(' ')[1] ?? 0) * PAGE_BYTES > mostBytes) grown.abort();
  }, MEMORY_LOOK_MS);
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

function how(code: number | null, signal: NodeJS.Signals | null): string {
  if (signal === 'SIGKILL') return 'was ended by somebody, or the system ran out of memory';
  return signal === null ? `ended with exit code ${code}` : `ended with signal ${signal}`;
}

function quote(last: LastLines): string {
  const lines = last.lines();
  return lines.length ? ` Its last lines:\n${lines.join('\n')}` : '';
}
