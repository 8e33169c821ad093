import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';

/** Its imports may take half a minute where nothing of torch is in memory yet. */
const START_MS = 120_000;
const ANSWER_MS = 120_000;

/** What torch-parts.py says of itself. */
export interface TorchPlace {
  readonly version: string;
  readonly gpus: number;
  readonly on: string;
  readonly backend: string;
}

/** Times that it measured. `how`: `graph` without launches, `launches` with them, `wall` from end to end. */
export interface TorchTimes {
  readonly ms: readonly number[];
  readonly how: 'graph' | 'launches' | 'wall' | '';
}

export interface TorchSetting {
  /** Whether it is to use GPUs; without, it has none. */
  readonly gpu: boolean;
  readonly ranks?: number;
  /** What speaks as torch-parts.py does. */
  readonly program?: readonly string[];
}

interface Rank {
  readonly child: ChildProcessByStdio<Writable, Readable, Readable>;
  readonly lines: AsyncIterator<string>;
  /** The end of what it wrote to stderr. */
  errors: string;
}

/**
 * What a line of torch-parts.py says, of those that begin with `word`; null for a line that is no part of the talk. Throws on
 * a PROBLEM, with its reason.
 */
export function saidIn(line: string, word: 'READY' | 'ANSWER'): unknown {
  const [, first, json] = /^(READY|ANSWER|PROBLEM) (.*)$/.exec(line) ?? [];
  if (first === 'PROBLEM') throw new Error(String(JSON.parse(json)));
  return first === word ? JSON.parse(json) : null;
}

/** PyTorch in a process of its own, or one a rank, that measures what it is asked for. */
export class TorchParts {
  private readonly told = new Set<string>();

  private constructor(
    private readonly ranks: readonly Rank[],
    private readonly folder: string,
    readonly place: TorchPlace,
  ) {}

  /** Starts it. Rejects, with the reason, where python3 or torch is not there or sees no GPU that it is to use. */
  static async open({ gpu, ranks = 1, program }: TorchSetting): Promise<TorchParts> {
    const [command, ...args] = program ?? ['python3', path.join(import.meta.dirname, 'torch-parts.py')];
    const folder = mkdtempSync(path.join(tmpdir(), 'bench-torch-'));
    const started = Array.from({ length: ranks }, (_, rank) => {
      const several = { RANK: String(rank), WORLD_SIZE: String(ranks), MEET: path.join(folder, 'meet') };
      const env = { ...process.env, ...(ranks > 1 && several), ...(!gpu && { CUDA_VISIBLE_DEVICES: '' }) };
      return startRank(command, args, env);
    });
    try {
      const places = await Promise.all(started.map((rank) => heard(rank, 'READY', START_MS)));
      const parts = new TorchParts(started, folder, places[0] as TorchPlace);
      if (gpu && parts.place.gpus === 0) throw new Error(`torch ${parts.place.version} sees no GPU`);
      return parts;
    } catch (error) {
      end(started, folder);
      throw error;
    }
  }

  /**
   * Times of one thing, which is made at the first question of its kind; of several ranks, of each time the slowest's.
   * Rejects with torch's own reason where it cannot; it may be asked on.
   */
  async ask(question: { readonly ask: string; readonly rounds?: number; readonly [more: string]: unknown }) {
    for (const { child } of this.ranks) child.stdin.write(`${JSON.stringify(question)}\n`);
    const answers = await Promise.all(
      this.ranks.map((rank) => heard(rank, 'ANSWER', ANSWER_MS) as Promise<TorchTimes>),
    );
    const [{ ms, how }] = answers;
    return { ms: ms.map((_, i) => Math.max(...answers.map((each) => each.ms[i]))), how };
  }

  /** Whether this was not told of it before. */
  isNews(text: string): boolean {
    if (this.told.has(text)) return false;
    this.told.add(text);
    return true;
  }

  /** Drops what was made. */
  async forget(): Promise<void> {
    await this.ask({ ask: 'forget' });
  }

  close(): void {
    end(this.ranks, this.folder);
  }
}

/** Torch beside what a benchmark measures; null where there is none, which a line says. */
export async function torchBeside(setting: TorchSetting): Promise<TorchParts | null> {
  try {
    const torch = await TorchParts.open(setting);
    const { version, on, backend } = torch.place;
    const ranks = setting.ranks ? `, ${setting.ranks} ranks by ${backend}` : '';
    console.log(`beside torch ${version} on ${on}${ranks}`);
    return torch;
  } catch (error) {
    console.log(`without torch: ${lastLine((error as Error).message)}`);
    return null;
  }
}

const HOW = {
  graph: 'on the device, as a graph: without launches',
  launches: 'on the device, launches included',
  wall: 'from end to end',
};

/** What torch answers; null without torch, and where it cannot, which a line says. So does how it measures, the first time. */
export async function askBeside(
  torch: TorchParts | null,
  question: Parameters<TorchParts['ask']>[0],
): Promise<TorchTimes | null> {
  if (!torch) return null;
  try {
    const times = await torch.ask(question);
    if (torch.isNews(`${question.ask} ${times.how}`) && times.how)
      console.log(`torch's ${question.ask}: ${HOW[times.how]}`);
    return times;
  } catch (error) {
    console.log(`torch has no ${question.ask}: ${lastLine((error as Error).message)}`);
    return null;
  }
}

function lastLine(text: string): string {
  return text.trim().split('\n').at(-1) ?? '';
}

function startRank(command: string, args: readonly string[], env: NodeJS.ProcessEnv): Rank {
  const child = spawn(command, args, { env, stdio: ['pipe', 'pipe', 'pipe'] });
  const rank: Rank = { child, lines: createInterface(child.stdout)[Symbol.asyncIterator](), errors: '' };
  child.on('error', ({ message }) => {
    rank.errors = message;
  });
  // One that has ended is told of by its lines.
  child.stdin.on('error', () => undefined);
  child.stderr.setEncoding('utf8').on('data', (text) => {
    rank.errors = (rank.errors + text).slice(-2000);
  });
  return rank;
}

/** The next that a rank says with this word. */
async function heard(rank: Rank, word: 'READY' | 'ANSWER', boundMs: number): Promise<unknown> {
  const timer = setTimeout(() => {
    rank.errors = `torch took longer than ${boundMs / 1000} s`;
    rank.child.kill('SIGKILL');
  }, boundMs);
  try {
    for (;;) {
      const { value, done } = await rank.lines.next();
      if (done) throw new Error(rank.errors || 'torch ended');
      const said = saidIn(value, word);
      if (said !== null) return said;
    }
  } finally {
    clearTimeout(timer);
  }
}

function end(ranks: readonly Rank[], folder: string): void {
  for (const { child } of ranks) child.kill('SIGKILL');
  rmSync(folder, { recursive: true, force: true });
}
