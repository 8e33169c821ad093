import { type ChildProcessByStdio, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import type { Figures } from './fabric-table-rows.ts';

/** What starts one rank's process; it speaks as fabric-table-torch.py does. */
export interface TorchProgram {
  readonly program: string;
  readonly args: readonly string[];
  /** How long its imports may take, and a row. */
  readonly startMs: number;
  readonly rowMs: number;
}

interface Rank {
  readonly child: ChildProcessByStdio<Writable, Readable, Readable>;
  /** The end of what it wrote to stderr. */
  errors: string;
  hear: (line: string) => void;
  readonly ended: Promise<number | null>;
}

/**
 * Fabric's side: a process a rank, which has imported what it needs, forks one for each row and waits in between without using
 * a GPU. After a row that failed they are started anew.
 */
export class TorchRanks {
  readonly #program: TorchProgram;
  readonly #world: number;
  #ranks: Rank[] = [];
  #gpus = 0;

  private constructor(program: TorchProgram, world: number) {
    this.#program = program;
    this.#world = world;
  }

  /** Starts them; null where python3, torch or lightning is not there, or there is no GPU. */
  static async open(program: TorchProgram, world: number): Promise<TorchRanks | null> {
    const ranks = new TorchRanks(program, world);
    try {
      await ranks.#start();
    } catch {
      ranks.close();
      return null;
    }
    if (ranks.#gpus > 0) return ranks;
    ranks.close();
    return null;
  }

  /** How many GPUs torch sees. */
  get gpus(): number {
    return this.#gpus;
  }

  /** Runs the baseline with these arguments on the first `devices` ranks. Rejects with the end of what a rank said. */
  async row(args: readonly string[], devices: number): Promise<Figures> {
    try {
      return await this.#row(args, devices);
    } catch (error) {
      // A rank may wait for one that failed.
      this.close();
      throw error;
    }
  }

  close(): void {
    for (const { child } of this.#ranks.splice(0)) child.kill('SIGKILL');
  }

  async #row(args: readonly string[], devices: number): Promise<Figures> {
    if (!this.#ranks.length) await this.#start();
    const port = await freePort();
    const taking = this.#ranks.slice(0, devices);
    const done = Promise.all(taking.map((rank) => this.#until(rank, /^DONE\b/, this.#program.rowMs)));
    for (const { child } of taking) child.stdin.write(`${[port, ...args].join(' ')}\n`);
    const [lines] = await done;
    const said = lines.find((line) => line.startsWith('RESULT '));
    if (said === undefined) throw new Error('the baseline gave no RESULT');
    const result = JSON.parse(said.slice('RESULT '.length));
    return {
      ms: [result.iteration_s, result.min_s, result.max_s].map((s: number) => s * 1000),
      liveMiB: result.peak_allocated_MiB,
      reservedMiB: result.peak_reserved_MiB,
    };
  }

  async #start(): Promise<void> {
    this.#ranks = Array.from({ length: this.#world }, (_, index) => startRank(this.#program, index));
    const said = await Promise.all(this.#ranks.map((rank) => this.#until(rank, /^READY\b/, this.#program.startMs)));
    this.#gpus = Number(said[0][said[0].length - 1].split(' ')[1]);
  }

  /** The lines up to the first like this. Rejects when the rank ends before, or takes too long. */
  #until(rank: Rank, last: RegExp, boundMs: number): Promise<string[]> {
    return new Promise((resolve, reject) => {
      const lines: string[] = [];
      const fail = (why: string) => reject(new Error(`${why}: ${rank.errors}`));
      const timer = setTimeout(() => fail(`a rank took longer than ${boundMs / 1000} s`), boundMs);
      rank.hear = (line) => {
        lines.push(line);
        if (!last.test(line)) return;
        clearTimeout(timer);
        resolve(lines);
      };
      void rank.ended.then((code) => {
        clearTimeout(timer);
        fail(`a rank ended with ${code}`);
      });
    });
  }
}

function startRank({ program, args }: TorchProgram, index: number): Rank {
  const env = { ...process.env, LOCAL_RANK: String(index) };
  const child = spawn(program, args, { env, stdio: ['pipe', 'pipe', 'pipe'] });
  const rank: Rank = {
    child,
    errors: '',
    hear: () => undefined,
    // By its streams' end: what it said last is heard before.
    ended: new Promise((resolve) => child.on('error', () => resolve(null)).on('close', resolve)),
  };
  child.stdin.on('error', () => undefined);
  child.stderr.setEncoding('utf8').on('data', (text) => {
    rank.errors = (rank.errors + text).slice(-2000);
  });
  createInterface({ input: child.stdout }).on('line', (line) => rank.hear(line));
  return rank;
}

/** Where the ranks of a row meet. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  if (address === null || typeof address === 'string') throw new Error('no port is free');
  return address.port;
}
