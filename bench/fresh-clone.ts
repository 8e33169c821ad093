import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readlinkSync,
  realpathSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';

const root = path.resolve(import.meta.dirname, '..');
const boundMs = 10 * 60_000;

/**
 * Clones the committed state to a new folder, runs `npm start` there as on a bare machine (a PATH of node, npm, sh and
 * env; an empty home), waits for the page, stops it, and looks that nothing is left running. Fails if any of it fails.
 */
export async function run(): Promise<void> {
  const work = mkdtempSync(path.join(tmpdir(), 'shard-studio-clone-'));
  try {
    const clone = path.join(work, 'clone');
    execFileSync('git', ['clone', '--quiet', '--depth', '1', `file://${root}`, clone]);
    const port = await freePort();
    const started = performance.now();
    const npm = spawn('npm', ['start', '--', '--port', String(port)], {
      cwd: clone,
      env: bareEnvironment(work),
      stdio: ['ignore', 'inherit', 'inherit'],
    });
    try {
      await pageOf(`http://127.0.0.1:${port}/`, npm, started + boundMs);
      console.log(`fresh clone to page  ${((performance.now() - started) / 1000).toFixed(0)} s`);
    } finally {
      npm.kill('SIGTERM');
    }
    const exit = await exitOf(npm, 30_000);
    if (exit !== 0) throw new Error(`npm start ended with ${exit} when asked to stop`);
    const left = processesIn(clone);
    if (left.length) throw new Error(`still running after npm start: ${left.join(', ')}`);
  } finally {
    rmSync(work, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** A folder of links to the only programs that set-up may use: no compiler, no git, no Python. */
function barePath(bin: string): string {
  mkdirSync(bin, { recursive: true });
  for (const program of ['node', 'npm', 'sh', 'env']) {
    const found = (process.env.PATH ?? '')
      .split(path.delimiter)
      .filter((folder) => !folder.includes('node_modules'))
      .map((folder) => path.join(folder, program))
      .find((file) => existsSync(file));
    if (!found) throw new Error(`${program} is not on the PATH`);
    symlinkSync(realpathSync(found), path.join(bin, program));
  }
  return bin;
}

/**
 * The environment of a machine that has nothing but a way to npm's registry. Packages that were downloaded once need
 * not be again: this is a figure of set-up, not of the network.
 */
function bareEnvironment(work: string): NodeJS.ProcessEnv {
  const npmConfig = (key: string) => execFileSync('npm', ['config', 'get', key], { encoding: 'utf8' }).trim();
  const kept = ['HTTP_PROXY', 'HTTPS_PROXY', 'NO_PROXY', 'NODE_EXTRA_CA_CERTS'];
  return {
    ...Object.fromEntries(kept.filter((key) => process.env[key]).map((key) => [key, process.env[key]])),
    PATH: barePath(path.join(work, 'bin')),
    HOME: path.join(work, 'home'),
    npm_config_cache: npmConfig('cache'),
    npm_config_userconfig: npmConfig('userconfig'),
  } as Record<string, string> as NodeJS.ProcessEnv;
}

async function pageOf(url: string, server: ChildProcess, deadline: number): Promise<void> {
  while (performance.now() < deadline) {
    if (server.exitCode !== null) throw new Error(`npm start ended with ${server.exitCode} before it served ${url}`);
    const response = await fetch(url).catch(() => null);
    if (response?.ok && (await response.text()).includes('<html')) return;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  throw new Error(`no page at ${url} after ${boundMs / 1000} s`);
}

function exitOf(child: ChildProcess, withinMs: number): Promise<number | string> {
  return new Promise((resolve, reject) => {
    if (child.exitCode !== null) return resolve(child.exitCode);
    const timer = setTimeout(() => {
      child.kill('SIGKILL');
      reject(new Error(`npm start did not end within ${withinMs / 1000} s of SIGTERM`));
    }, withinMs);
    child.once('exit', (code, signal) => {
      clearTimeout(timer);
      resolve(code ?? String(signal));
    });
  });
}

/** The processes that work in a folder, as "pid program". */
function processesIn(folder: string): string[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => linkOf(`/proc/${pid}/cwd`).startsWith(folder))
    .map((pid) => `${pid} ${linkOf(`/proc/${pid}/exe`)}`);
}

/** A process that ended meanwhile, or is another user's, is in no folder. */
function linkOf(file: string): string {
  try {
    return readlinkSync(file);
  } catch {
    return '';
  }
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer().once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const address = probe.address();
      probe.close(() =>
        typeof address === 'object' && address ? resolve(address.port) : reject(new Error('no free port')),
      );
    });
  });
}
