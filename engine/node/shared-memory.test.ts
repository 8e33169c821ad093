import { type ChildProcess, fork } from 'node:child_process';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { describeMailbox } from '../comm/conformance.ts';
import type { RegionSpec } from '../comm/mailbox.ts';
import type { RankMessage, RankTask } from './fixtures/mailbox-rank.ts';
import { processStartTime } from './liveness.ts';
import { layOut, openSharedMailbox } from './shared-memory.ts';
import { MAX_VIEW_BYTES } from './shared-segment.ts';

describeMailbox('over shared memory', async (worldSize, regions, options) => {
  const path = await mkdtemp(join(tmpdir(), 'mailbox-'));
  try {
    return await Promise.all(
      Array.from({ length: worldSize }, (_, rank) =>
        openSharedMailbox({ path, rank, worldSize, regions, spin: false, ...options }),
      ),
    );
  } finally {
    await rm(path, { recursive: true });
  }
});

const gradients: RegionSpec = { name: 'gradients', bytes: 40_000, readsPerPublication: 1 };
const shard: RegionSpec = { name: 'shard', bytes: 999, readsPerPublication: 2 };

/** A rank in a process of its own, with what it has said so far. */
class RankProcess {
  readonly child: ChildProcess;
  readonly said: RankMessage[] = [];
  private readonly waiting = new Set<() => void>();
  private exited = false;

  constructor(task: RankTask) {
    const fixture = fileURLToPath(new URL('./fixtures/mailbox-rank.ts', import.meta.url));
    const loader = createRequire(import.meta.url).resolve('tsx');
    this.child = fork(fixture, [JSON.stringify(task)], { execArgv: ['--import', pathToFileURL(loader).href] });
    this.child.on('message', (message) => this.note(() => this.said.push(message as RankMessage)));
    this.child.on('exit', () =>
      this.note(() => {
        this.exited = true;
      }),
    );
  }

  private note(change: () => void): void {
    change();
    for (const look of this.waiting) look();
  }

  /** The first message of the type; fails when the process ends without it. */
  message<T extends RankMessage['type']>(type: T): Promise<Extract<RankMessage, { type: T }>> {
    return new Promise((resolve, reject) => {
      const look = () => {
        const found = this.said.find((message) => message.type === type);
        if (found) resolve(found as Extract<RankMessage, { type: T }>);
        else if (this.exited) reject(new Error(`the rank ended and had said ${JSON.stringify(this.said)}`));
        else return;
        this.waiting.delete(look);
      };
      this.waiting.add(look);
      look();
    });
  }
}

describe('ranks in processes of their own', () => {
  let path = '';
  const ranks: RankProcess[] = [];
  const start = (worldSize: number, common: Partial<RankTask>, ...special: Partial<RankTask>[]) => {
    for (let rank = 0; rank < worldSize; rank++) {
      const regions = [gradients, shard];
      const task = { path, rank, worldSize, regions, rounds: 20, timeoutMs: 30_000, ...common, ...special[rank] };
      ranks.push(new RankProcess(task));
    }
    return ranks;
  };
  const ends = (of: readonly RankProcess[]) => Promise.all(of.map((rank) => rank.message('end')));

  beforeEach(async () => {
    path = await mkdtemp(join(tmpdir(), 'ranks-'));
  });
  afterEach(async () => {
    for (const { child } of ranks.splice(0)) child.kill('SIGKILL');
    await rm(path, { recursive: true, force: true });
  });

  test('exchange whole publications, and leave no file', async () => {
    start(3, { rounds: 300 });
    await Promise.all(ranks.map((rank) => rank.message('open')));
    expect(await readdir(path)).toEqual([]);
    expect(await ends(ranks)).toEqual(ranks.map(() => ({ type: 'end', wrongBytes: 0 })));
  }, 60_000);

  test('wait for a slow peer', async () => {
    start(2, { rounds: 4 }, { pauseMs: 120 });
    expect(await ends(ranks)).toEqual(ranks.map(() => ({ type: 'end', wrongBytes: 0 })));
  }, 60_000);

  test('learn within 2 s that one was killed', async () => {
    const [, killed, , ...rest] = start(4, {}, {}, { stallInRound: 3 });
    const others = [ranks[0], ranks[2], ...rest];
    await killed.message('stalled');
    killed.child.kill('SIGKILL');
    const killedAt = performance.now();
    for (const end of await ends(others)) {
      expect(end).toMatchObject({ code: 'peer-lost', details: { rank: 1 } });
      expect(end).toMatchObject({ message: expect.stringContaining(`its process ${killed.child.pid} has ended`) });
    }
    expect(performance.now() - killedAt).toBeLessThan(2000);
  }, 60_000);

  test('hear what a failing rank said, after it is gone too', async () => {
    start(3, {}, {}, {}, { failInRound: 2 });
    const expected = { code: 'peer-lost', details: { rank: 2, message: 'rank 2 was told to fail' } };
    for (const end of await ends(ranks.slice(0, 2))) expect(end).toMatchObject(expected);
  }, 60_000);

  test('do not wait for ever for one that stalls', async () => {
    const [rank] = start(2, {}, { timeoutMs: 300 }, { stallInRound: 1 });
    expect(await rank.message('end')).toMatchObject({ code: 'timeout', details: { peer: 1, region: 'gradients' } });
  }, 60_000);

  test('refuse to exchange when their tables differ, and say where', async () => {
    start(2, {}, {}, { regions: [gradients, { ...shard, bytes: 1000 }] });
    for (const end of await ends(ranks)) {
      expect(end).toMatchObject({
        code: expect.stringMatching(/invalid-schedule|peer-lost/),
        message: expect.stringMatching(/region 1 is shard \(\d+ bytes, 2 reads\) and shard \(\d+ bytes, 2 reads\)/),
      });
    }
  }, 60_000);
});

describe('opening', () => {
  let path = '';
  beforeEach(async () => {
    path = await mkdtemp(join(tmpdir(), 'opening-'));
  });
  afterEach(() => rm(path, { recursive: true, force: true }));
  const open = (rank: number, options: Partial<Parameters<typeof openSharedMailbox>[0]> = {}) =>
    openSharedMailbox({ path, rank, worldSize: 2, regions: [gradients], spin: false, timeoutMs: 5000, ...options });

  test('ends when a peer does not come', async () => {
    await expect(open(0, { timeoutMs: 60 })).rejects.toMatchObject({
      code: 'timeout',
      message: expect.stringContaining('for rank 1 to open its mailbox'),
    });
  });

  test('ends when a peer cannot, with its reason', async () => {
    const peer = expect(open(1)).rejects.toMatchObject({
      code: 'peer-lost',
      details: { rank: 0, message: expect.stringContaining('MiB of host memory') },
    });
    const tooMuch = Array.from({ length: 4096 }, (_, index) => ({ ...gradients, name: `${index}`, bytes: 2 ** 31 }));
    await expect(open(0, { regions: tooMuch })).rejects.toMatchObject({
      code: 'out-of-memory',
      details: { neededBytes: expect.any(Number), freeMemoryBytes: expect.any(Number) },
    });
    await peer;
  });

  test('blames the rank that failed first', async () => {
    const third = expect(open(2, { worldSize: 3 })).rejects.toMatchObject({ code: 'peer-lost', details: { rank: 0 } });
    const second = expect(open(1, { worldSize: 3 })).rejects.toMatchObject({ code: 'peer-lost', details: { rank: 0 } });
    const unfit = { ...gradients, bytes: 2 ** 31 };
    const regions = Array.from({ length: 4096 }, (_, index) => ({ ...unfit, name: `${index}` }));
    await expect(open(0, { worldSize: 3, regions })).rejects.toMatchObject({ code: 'out-of-memory' });
    await Promise.all([second, third]);
  });

  test('takes a file when memory is short, and says so', async () => {
    const notices: string[] = [];
    const before = await readdir(tmpdir());
    const [first, second] = await Promise.all([
      open(0, { memoryLimitBytes: 0, onNotice: (text) => notices.push(text) }),
      open(1),
    ]);
    expect(notices).toEqual([expect.stringContaining('exchange through a file')]);
    const made = (await readdir(tmpdir())).filter((name) => name.startsWith('shard-studio-') && !before.includes(name));
    expect(made).toEqual([]);
    await first.beginWrite(0);
    first.outbox(0).fill(9);
    first.publish(0);
    await second.arrived(0, 0);
    expect(second.inbox(0, 0).every((byte) => byte === 9)).toBe(true);
    first.close();
    second.close();
  });

  test('is not deceived by a process that got the pid of a dead peer', async () => {
    const offer = { pid: process.pid, startTime: processStartTime(process.pid)! - 1, fd: 0, worldSize: 2 };
    await writeFile(join(path, 'rank-1.json'), JSON.stringify({ ...offer, regions: [gradients] }));
    await expect(open(0)).rejects.toMatchObject({
      code: 'peer-lost',
      details: { rank: 1, message: `its process ${process.pid} has ended.` },
    });
  });
});

describe('the layout of a rank', () => {
  const region = (name: string, bytes: number): RegionSpec => ({ name, bytes, readsPerPublication: 1 });

  test('keeps every region within one view, aligned, and apart from the others', () => {
    const regions = [1.5 * 2 ** 30, 100, 2 ** 30, 2 ** 31, 0, 7].map((bytes, index) => region(`${index}`, bytes));
    const { views, regions: places, bytes } = layOut(8, regions);
    let end = 0;
    for (const [index, view] of views.entries()) {
      expect(view.bytes).toBeLessThanOrEqual(MAX_VIEW_BYTES);
      expect(view.offset % 4096).toBe(0);
      expect(view.offset).toBeGreaterThanOrEqual(end);
      end = view.offset + view.bytes;
      let used = 0;
      for (const [at, place] of places.entries()) {
        if (place.view !== index) continue;
        expect(place.offset % 256).toBe(0);
        expect(place.offset).toBeGreaterThanOrEqual(used);
        used = place.offset + regions[at].bytes;
      }
      expect(used).toBeLessThanOrEqual(view.bytes);
    }
    expect(bytes).toBeGreaterThanOrEqual(end);
    expect(views.length).toBe(4);
  });

  test('refuses a region that no view can hold', () => {
    expect(() => layOut(2, [region('unit 0', 2 ** 31 + 4)])).toThrow(
      expect.objectContaining({ code: 'too-large', message: expect.stringContaining('unit 0') }),
    );
  });
});
