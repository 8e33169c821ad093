import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, type WriteStream } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { HEARTBEAT_DESCRIPTOR } from '../../engine/node/heartbeat.ts';
import { FromWorker, Heartbeat, type ToWorker, type WorkerStart } from '../../engine/node/worker-protocol.ts';
import { LastLines } from './last-lines.ts';

/** A log file keeps this much of what a worker prints; the rest is dropped, and said so. */
const MAX_LOG_BYTES = 16 * 1024 * 1024;
/** After a process ended, how long its last output may take to arrive. */
const OUTPUT_MS = 1000;

const projectFolder = fileURLToPath(new URL('../../', import.meta.url));

/** How a process ended. */
export interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  /** Why it never ran, if so. */
  readonly startError: string | null;
}

export interface WorkerProcessOptions {
  readonly entry: string;
  readonly env: NodeJS.ProcessEnv;
  readonly logFile: string;
  readonly start: WorkerStart;
  /** A message that fits the protocol. Nothing comes after `onExit`. */
  readonly onMessage: (message: FromWorker) => void;
  /** A message that does not. */
  readonly onNonsense: (why: string) => void;
  readonly onExit: (exit: Exit) => void;
}

/** One forked worker: its messages parsed, its output kept, its end told once after it was reaped. */
export class WorkerProcess {
  readonly #child: ChildProcess;
  readonly #last = new LastLines();
  readonly #log: WriteStream;
  #logBytes = 0;
  #ended = false;

  constructor(options: WorkerProcessOptions) {
    const loader = pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;
    this.#log = createWriteStream(options.logFile, { flags: 'a' });
    // A full disk must not end the server; the last lines are kept in memory anyway.
    this.#log.on('error', () => undefined);
    this.#child = fork(options.entry, [], {
      cwd: projectFolder,
      env: options.env,
      execArgv: ['--import', loader],
      // The last is HEARTBEAT_DESCRIPTOR: a thread of the worker's writes there while its main thread is busy.
      stdio: ['ignore', 'pipe', 'pipe', 'ipc', 'pipe'],
    });
    this.#hearHeartbeats(options);
    this.#child.stdout?.on('data', (bytes: Buffer) => this.#keep(bytes));
    this.#child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.#last.push(text);
      this.#keep(Buffer.from(text));
    });
    this.#child.on('message', (raw) => {
      if (this.#ended) return;
      const message = FromWorker.safeParse(raw);
      if (message.success) options.onMessage(message.data);
      else
        options.onNonsense(
          message.error.issues
            .map((i) => `${i.path.join('.')}: ${i.message}`)
            .join('; ')
            .slice(0, 500),
        );
    });
    let startError: string | null = null;
    const end = (code: number | null, signal: NodeJS.Signals | null) => {
      if (this.#ended) return;
      this.#ended = true;
      this.#log.end();
      options.onExit({ code, signal, startError });
    };
    this.#child.on('error', (error) => {
      // Also told of a failed kill or send, where the process goes on and its exit comes by itself.
      if (this.#child.pid !== undefined) return;
      startError = error.message;
      end(null, null);
    });
    this.#child.on('exit', (code, signal) => {
      // 'close' waits for the pipes, which a grandchild could hold open for ever.
      const output = once(this.#child, 'close', { signal: AbortSignal.timeout(OUTPUT_MS) });
      output.catch(() => undefined).then(() => end(code, signal));
    });
    this.send(options.start);
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  lastLines(): string[] {
    return this.#last.lines();
  }

  /** Sends a message; a worker that has gone is told of by its exit. */
  send(message: ToWorker): void {
    if (this.#child.connected) this.#child.send(message, () => undefined);
  }

  /** Only ever through the handle that we hold: a pid may be somebody else's by now. */
  kill(signal: 'SIGTERM' | 'SIGKILL'): void {
    if (!this.#ended) this.#child.kill(signal);
  }

  /** One line of JSON a beat. */
  #hearHeartbeats({ onMessage, onNonsense }: WorkerProcessOptions): void {
    const pipe = this.#child.stdio[HEARTBEAT_DESCRIPTOR] as Readable | null;
    if (!pipe) return;
    createInterface({ input: pipe }).on('line', (line) => {
      if (this.#ended) return;
      const beat = Heartbeat.safeParse(parseJson(line));
      if (beat.success) onMessage({ type: 'heartbeat', ...beat.data });
      else onNonsense('a heartbeat that is none');
    });
    pipe.on('error', () => undefined);
  }

  #keep(bytes: Buffer): void {
    if (this.#logBytes >= MAX_LOG_BYTES) return;
    this.#logBytes += bytes.length;
    this.#log.write(bytes);
    if (this.#logBytes >= MAX_LOG_BYTES) this.#log.write(`\n(cut here: a log keeps ${MAX_LOG_BYTES} bytes)\n`);
  }
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
