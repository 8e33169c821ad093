import { spawn } from 'node:child_process';
import { constants } from 'node:os';
import { root } from './paths.mjs';

/** A failure that a person can act on: its message is shown without a stack. */
export class SetupError extends Error {}

const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'];
const keptLines = 25;

/**
 * Runs a program to its end, within a bound. It gets a process group of its own: a signal to us goes to the whole
 * group once, and what it started does not outlive it.
 *
 * @param {string} command
 * @param {string[]} args
 * @param {{ env?: NodeJS.ProcessEnv, timeoutMs: number, quiet?: boolean }} options quiet: keep the output back
 * @returns {Promise<{ code: number, tail: string }>} `code` is 0 on success; `tail` the last lines, if quiet
 */
export function runProgram(command, args, { env = process.env, timeoutMs, quiet = false }) {
  return new Promise((resolve, reject) => {
    const output = quiet ? 'pipe' : 'inherit';
    const child = spawn(command, args, { cwd: root, env, detached: true, stdio: ['ignore', output, output] });
    const lines = [];
    let caught = null;
    let timedOut = false;

    const signalGroup = (signal) => {
      try {
        process.kill(-child.pid, signal);
      } catch (error) {
        if (error.code !== 'ESRCH') throw error;
      }
    };
    const forward = (signal) => {
      // A second Ctrl-C means now.
      signalGroup(caught ? 'SIGKILL' : signal);
      caught = signal;
    };
    for (const signal of signals) process.on(signal, forward);
    const timer = setTimeout(() => {
      timedOut = true;
      signalGroup('SIGKILL');
    }, timeoutMs);
    const release = () => {
      clearTimeout(timer);
      for (const signal of signals) process.off(signal, forward);
    };

    for (const stream of quiet ? [child.stdout, child.stderr] : []) {
      let rest = '';
      stream.setEncoding('utf8').on('data', (text) => {
        const parts = (rest + text).split('\n');
        rest = parts.pop();
        lines.push(...parts);
        if (lines.length > 4 * keptLines) lines.splice(0, lines.length - keptLines);
      });
      stream.on('end', () => rest && lines.push(rest));
    }

    child.on('error', (error) => {
      release();
      reject(
        new SetupError(`cannot run ${command}: ${error.code === 'ENOENT' ? 'it is not on the PATH' : error.message}`),
      );
    });
    // What the program left behind in its group (a browser, a server under test) ends with it, and lets the pipes close.
    child.on('exit', () => signalGroup('SIGKILL'));
    child.on('close', (code, signal) => {
      release();
      if (caught) process.exit(128 + constants.signals[caught]);
      const tail = lines.slice(-keptLines).join('\n');
      if (timedOut) {
        reject(
          new SetupError(
            `${command} ${args.join(' ')} was stopped after ${duration(timeoutMs)} without an end\n${tail}`,
          ),
        );
      } else {
        resolve({ code: code ?? 128 + (constants.signals[signal] ?? 0), tail });
      }
    });
  });
}

/**
 * A step of the set-up: says what it does, counts the seconds on a terminal, and keeps its output for a failure.
 *
 * @param {string} label what it does, e.g. "Installing packages"
 * @param {string} command
 * @param {string[]} args
 * @param {{ env?: NodeJS.ProcessEnv, timeoutMs: number, wayOut: (tail: string) => string }} options wayOut: what to do
 *   when it fails, told from its last lines
 * @throws {SetupError} with the last lines and the way out
 */
export async function runStep(label, command, args, { env, timeoutMs, wayOut }) {
  const started = performance.now();
  const live = process.stdout.isTTY;
  const line = (end) => `  ${label} … ${end}`;
  const show = () => process.stdout.write(`\r${line(duration(performance.now() - started))}\x1b[K`);
  process.stdout.write(live ? line('') : `${line('')}\n`);
  const ticker = live ? setInterval(show, 1000) : null;
  try {
    const { code, tail } = await runProgram(command, args, { env, timeoutMs, quiet: true });
    if (code !== 0) throw new SetupError(`${label} failed (exit ${code}):\n\n${indent(tail)}\n\n${wayOut(tail)}`);
    const took = duration(performance.now() - started);
    process.stdout.write(live ? `\r${line(took)}\x1b[K\n` : `    took ${took}\n`);
  } catch (error) {
    process.stdout.write('\n');
    throw error;
  } finally {
    clearInterval(ticker);
  }
}

/** Runs a script's main function: a SetupError ends it with exit code 1 and its message, anything else with a stack. */
export async function runScript(main) {
  try {
    await main();
  } catch (error) {
    if (!(error instanceof SetupError)) throw error;
    console.error(error.message);
    process.exitCode = 1;
  }
}

/** Milliseconds as a person says them: "0.8 s", "42 s", "3 min 20 s". */
export function duration(ms) {
  const seconds = Math.round(ms / 1000);
  if (ms < 9_950) return `${(ms / 1000).toFixed(1)} s`;
  if (seconds < 120) return `${seconds} s`;
  return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}

function indent(text) {
  return text.replaceAll(/^/gm, '    ');
}
