import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import type { CheckpointContent } from '../checkpoint/checkpoint-content.ts';
import { rankFileName, writeRankFile } from '../checkpoint/dcp-folder-writer.ts';
import { iterOf, readParameter } from '../checkpoint/stored-checkpoint.ts';
import { convertCheckpointPath } from './checkpoint-convert.ts';
import {
  abortCheckpointFolder,
  beginCheckpointFolder,
  finishCheckpointFolder,
  isWholeFolder,
  writeFolderFile,
} from './checkpoint-folder.ts';
import {
  checkpointName,
  deleteCheckpoint,
  keepLastCheckpoints,
  listCheckpoints,
  removeCheckpointLeftovers,
} from './checkpoint-list.ts';
import { openCheckpointPath } from './checkpoint-path.ts';
import { verifyCheckpoint } from './checkpoint-verify.ts';

/** Stands between the code and the disk: fails as the operating system would, or dies as under kill -9. */
const disk = vi.hoisted(() => {
  const state = { calls: 0, crashAt: Infinity, dead: false, failure: null as null | { method: string; code: string } };
  return Object.assign(state, {
    /** Before every call that changes something. */
    step(method: string): void {
      if (++state.calls === state.crashAt) state.dead = true;
      if (state.dead) throw new Error('killed');
      if (state.failure?.method === method) {
        throw Object.assign(new Error(method), { code: state.failure.code });
      }
    },
    reset(): void {
      Object.assign(state, { calls: 0, crashAt: Infinity, dead: false, failure: null });
    },
  });
});

vi.mock('node:fs/promises', async (importActual) => {
  const real = await importActual<typeof import('node:fs/promises')>();
  const guarded = Object.fromEntries(
    (['rename', 'unlink', 'rm', 'mkdir'] as const).map((method) => [
      method,
      async (...args: never[]) => {
        disk.step(method);
        return (real[method] as (...args: never[]) => Promise<unknown>)(...args);
      },
    ]),
  );
  const open: typeof real.open = async (path, flags, mode) => {
    if (flags !== 'r') disk.step('open');
    const handle = await real.open(path, flags, mode);
    for (const method of ['write', 'writeFile', 'sync'] as const) {
      const original = handle[method].bind(handle) as (...args: unknown[]) => Promise<unknown>;
      Object.assign(handle, {
        [method]: async (...args: unknown[]) => {
          disk.step(method);
          return original(...args);
        },
      });
    }
    return handle;
  };
  return { ...real, ...guarded, open };
});

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'checkpoint-folder-'));
});
afterEach(async () => {
  disk.reset();
  await rm(folder, { recursive: true, force: true });
});

const ROWS = 7;
function contentAt(step: number): CheckpointContent {
  const tensor = {
    kind: 'tensor-content' as const,
    dtype: 'float32' as const,
    shape: [ROWS, 2],
    read: (_first: number, count: number) => [new Uint8Array(new Float32Array(count).fill(step).buffer)],
  };
  return { model: new Map([['w', tensor]]), optimizer: null, rest: new Map([['iter', step]]) };
}

async function save(step: number, world = 2, saveId = `save ${step}`) {
  const path = join(folder, checkpointName(step, 'sharded'));
  const temporary = await beginCheckpointFolder(path);
  const parts = [];
  for (let rank = 0; rank < world; rank++) {
    const { file, result } = await writeFolderFile(temporary, rankFileName(rank), (sink) =>
      writeRankFile(contentAt(step), rank, world, saveId, sink),
    );
    parts.push({ file, entries: result });
  }
  return finishCheckpointFolder(temporary, path, contentAt(step), saveId, parts);
}

/** What the checkpoint after `step` steps holds, whole and verified. */
async function load(step: number): Promise<void> {
  const path = join(folder, checkpointName(step, 'sharded'));
  expect(await verifyCheckpoint(path)).toEqual({ kind: 'sharded', digests: true });
  const { checkpoint, close } = await openCheckpointPath(path);
  expect(iterOf(checkpoint)).toBe(step);
  expect([...(await readParameter(checkpoint, 'w', 0, 2 * ROWS))]).toEqual(Array(2 * ROWS).fill(step));
  await close();
}

const steps = async () => (await listCheckpoints(folder)).map(({ step }) => step);

describe('saving', () => {
  test('the folder appears with its digests, in the form of sha256sum', async () => {
    const { files, bytes, sha256, path } = await save(10);
    expect((await readdir(path)).sort()).toEqual(['.metadata', '__0_0.distcp', '__1_0.distcp', 'meta.pt']);
    expect((await readdir(folder)).sort()).toEqual(['step-000010', 'step-000010.sha256']);
    const sums = spawn('sha256sum', ['-c', '--strict', 'step-000010.sha256'], { cwd: folder, stdio: 'ignore' });
    expect((await once(sums, 'exit'))[0]).toBe(0);
    expect(bytes).toBe(files.reduce((sum, file) => sum + file.bytes, 0));
    expect(await listCheckpoints(folder)).toEqual([{ path, format: 'sharded', step: 10, bytes, sha256 }]);
  });

  test('9.8: it loads at once, in the same process, as often as asked', async () => {
    await save(10);
    await load(10);
    await load(10);
  });

  test('9.31: until the last moment it is not listed; aborted, nothing of it stays', async () => {
    const path = join(folder, 'step-000001');
    const temporary = await beginCheckpointFolder(path);
    await writeFolderFile(temporary, '__0_0.distcp', async () => undefined);
    expect([await steps(), await isWholeFolder(path)]).toEqual([[], false]);
    await abortCheckpointFolder(temporary);
    expect(await readdir(folder)).toEqual([]);
  });

  test('nothing is ever overwritten', async () => {
    await save(1);
    await expect(save(1)).rejects.toMatchObject({ code: 'conflict' });
    await mkdir(join(folder, 'step-000002'));
    await expect(save(2)).rejects.toMatchObject({ code: 'conflict' });
  });

  test('a file that no rank reported, or one that changed, is not committed', async () => {
    const commit = async (change: (temporary: string) => Promise<void>) => {
      const path = join(folder, 'step-000003');
      const temporary = await beginCheckpointFolder(path);
      const { file, result } = await writeFolderFile(temporary, '__0_0.distcp', (sink) =>
        writeRankFile(contentAt(3), 0, 1, 'x', sink),
      );
      await change(temporary);
      return finishCheckpointFolder(temporary, path, contentAt(3), 'x', [{ file, entries: result }]);
    };
    await expect(commit((path) => writeFile(join(path, '__9_0.distcp'), ''))).rejects.toThrow(/which no rank reported/);
    await expect(commit((path) => writeFile(join(path, '__0_0.distcp'), ''))).rejects.toThrow(/not as it was written/);
    expect(await readdir(folder)).toEqual([]);
  });
});

describe('9.30: a checkpoint that has changed is named', () => {
  test('a flipped byte, a missing file, one file too many, a list of another folder', async () => {
    const { path } = await save(4);
    const rank = join(path, '__1_0.distcp');
    const bytes = await readFile(rank);
    bytes[bytes.length >> 1] ^= 1;
    await writeFile(rank, bytes);
    await expect(verifyCheckpoint(path)).rejects.toThrow(/__1_0\.distcp has changed since it was written/);
    bytes[bytes.length >> 1] ^= 1;
    await writeFile(rank, bytes);
    await verifyCheckpoint(path);
    await writeFile(join(path, '__2_0.distcp'), '');
    await expect(verifyCheckpoint(path)).rejects.toThrow(/holds __2_0\.distcp, which is not on its list/);
    await rm(join(path, '__2_0.distcp'));
    await rm(rank);
    expect(await isWholeFolder(path)).toBe(false);
    await expect(verifyCheckpoint(path)).rejects.toThrow(/lacks __1_0\.distcp/);
    await writeFile(
      `${path}.sha256`,
      (await readFile(`${path}.sha256`, 'utf8')).replaceAll('step-000004', 'step-000005'),
    );
    expect(await isWholeFolder(path)).toBe(false);
  });

  test('9.56: the shard of another step fits in every length; digests and the save’s id both say so', async () => {
    const [old, young] = [await save(4), await save(5)];
    await writeFile(join(young.path, '__1_0.distcp'), await readFile(join(old.path, '__1_0.distcp')));
    await expect(verifyCheckpoint(young.path)).rejects.toThrow(/__1_0\.distcp has changed/);
    await expect(openCheckpointPath(young.path)).rejects.toThrow(/__1_0\.distcp is of another save/);
  });

  test('without digests, by its CRCs', async () => {
    const { path } = await save(4);
    await rm(`${path}.sha256`);
    expect(await verifyCheckpoint(path)).toEqual({ kind: 'sharded', digests: false });
    const rank = join(path, '__1_0.distcp');
    const bytes = await readFile(rank);
    bytes[bytes.indexOf(new Uint8Array(Float32Array.of(4).buffer), 1000)] ^= 1;
    await writeFile(rank, bytes);
    await expect(verifyCheckpoint(path)).rejects.toThrow(/__1_0\.distcp.*CRC-32/);
  });
});

describe('listed, deleted, kept', () => {
  test('a folder that lost a file is not listed', async () => {
    await save(3);
    const { path } = await save(20);
    await rm(join(path, rankFileName(1)));
    expect(await steps()).toEqual([3]);
  });

  test('files and folders by step; others are not ours', async () => {
    await save(20);
    await save(3);
    const file = join(folder, 'step-000010.ckpt');
    await convertCheckpointPath({ from: join(folder, 'step-000003'), to: file, kind: 'full' });
    for (const name of ['notes', 'step-x', 'step-000007.ckpt']) await writeFile(join(folder, name), 'x');
    expect((await listCheckpoints(folder)).map(({ step, format }) => [step, format])).toEqual([
      [3, 'sharded'],
      [10, 'full'],
      [20, 'sharded'],
    ]);
    expect(await keepLastCheckpoints(folder, 1)).toEqual([join(folder, 'step-000003'), file]);
    expect(await steps()).toEqual([20]);
    expect((await removeCheckpointLeftovers(folder)).sort()).toEqual(['step-000007.ckpt']);
    expect((await readdir(folder)).sort()).toEqual(['notes', 'step-000020', 'step-000020.sha256', 'step-x']);
    expect(await listCheckpoints(join(folder, 'none'))).toEqual([]);
  });

  test('converted from folder to folder and file, whole with digests; what exists is not touched', async () => {
    const { path } = await save(3);
    const to = join(folder, 'copy');
    await convertCheckpointPath({ from: path, to, kind: 'sharded', ranks: 3 });
    expect(await verifyCheckpoint(to)).toEqual({ kind: 'sharded', digests: true });
    await expect(convertCheckpointPath({ from: path, to, kind: 'full' })).rejects.toMatchObject({ code: 'conflict' });
    const weights = join(folder, 'w.safetensors');
    await convertCheckpointPath({ from: to, to: weights, kind: 'safetensors' });
    expect(await verifyCheckpoint(weights)).toEqual({ kind: 'safetensors', digests: true });
    await expect(openCheckpointPath(join(folder, 'none'))).rejects.toMatchObject({ code: 'not-found' });
  });
});

describe('killed', () => {
  /** Runs `action` with the n-th change of the disk as the last, for every n until it gets through. */
  async function killEverywhere(
    prepare: () => Promise<void>,
    action: () => Promise<unknown>,
    check: () => Promise<void>,
  ) {
    for (let crashAt = 1; ; crashAt++) {
      await prepare();
      Object.assign(disk, { calls: 0, crashAt });
      const finished = await action().then(
        () => !disk.dead,
        (error: Error) => {
          if (!disk.dead) throw error;
          return false;
        },
      );
      disk.reset();
      await check();
      if (finished) return crashAt;
      await rm(folder, { recursive: true });
      await mkdir(folder);
    }
  }

  test('9.29: at any moment of a save, the one before loads, the new one is whole or gone, nothing else stays', async () => {
    let appeared = 0;
    const moments = await killEverywhere(
      async () => void (await save(1)),
      () => save(2),
      async () => {
        const listed = await steps();
        await removeCheckpointLeftovers(folder);
        expect(await steps()).toEqual(listed);
        expect((await readdir(folder)).sort()).toEqual(
          listed.flatMap((step) => [checkpointName(step, 'sharded'), `${checkpointName(step, 'sharded')}.sha256`]),
        );
        expect(listed[0]).toBe(1);
        for (const step of listed) await load(step);
        appeared += listed.length - 1;
      },
    );
    expect(moments).toBeGreaterThan(20);
    expect(appeared).toBeGreaterThan(0);
  });

  test('at any moment of deleting: whole, or not listed and gone at the next start', async () => {
    await killEverywhere(
      async () => void (await save(1).then(() => save(2))),
      () => deleteCheckpoint(join(folder, 'step-000001')),
      async () => {
        const listed = await steps();
        for (const step of listed) await load(step);
        expect(listed).toContain(2);
        await removeCheckpointLeftovers(folder);
        expect((await readdir(folder)).length).toBe(2 * listed.length);
      },
    );
  });

  test('9.29: kill -9 at random moments: what is listed is whole, and the last one that was announced is there', async () => {
    const program = new URL('./fixtures/save-folders.ts', import.meta.url).pathname;
    for (const delayMs of [0, 40, 90]) {
      const writer = spawn(process.execPath, ['--import', 'tsx', program, folder], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      let announced = '';
      writer.stdout.on('data', (text) => (announced += text));
      await once(writer.stdout, 'data');
      await new Promise((resolve) => setTimeout(resolve, delayMs));
      writer.kill('SIGKILL');
      await once(writer, 'exit');
      const listed = await listCheckpoints(folder);
      for (const { path } of listed) await verifyCheckpoint(path);
      expect(listed.at(-1)!.step).toBeGreaterThanOrEqual(Number(announced.trim().split('\n').at(-1)));
      await removeCheckpointLeftovers(folder);
      expect((await readdir(folder)).length).toBe(2 * listed.length);
    }
  });
});

describe('a disk that fails', () => {
  test.each([
    ['write', 'ENOSPC', /disk is full/],
    ['sync', 'EIO', /disk reports an error/],
    ['rename', 'EROFS', /read-only/],
    ['writeFile', 'EDQUOT', /quota/],
  ])('%s: %s is said in words, the checkpoint before stays, the next save works', async (method, code, words) => {
    await save(1);
    disk.failure = { method, code };
    await expect(save(2)).rejects.toThrow(words);
    disk.reset();
    expect(await steps()).toEqual([1]);
    await removeCheckpointLeftovers(folder);
    expect((await readdir(folder)).sort()).toEqual(['step-000001', 'step-000001.sha256']);
    await save(2);
    for (const step of [1, 2]) await load(step);
  });
});

describe('a disk that is full', () => {
  const mount = (size: string) => {
    const result = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${size}`, 'tmpfs', folder], { stdio: 'ignore' });
    return result.status === 0;
  };
  afterEach(() => {
    spawnSync('umount', ['-l', folder], { stdio: 'ignore' });
  });

  test('a real one: saves fail with the reason until there is room; none that was whole is lost', async (context) => {
    if (!mount('64k')) return context.skip('only root may mount a file system');
    const whole: number[] = [];
    for (let step = 1; step <= 12; step++) {
      const failure = await save(step).then(
        () => null,
        (error: Error) => error,
      );
      if (failure) {
        expect(failure.message).toMatch(/disk is full/);
        await removeCheckpointLeftovers(folder);
      } else whole.push(step);
      expect(await steps()).toEqual(whole);
      for (const saved of whole) await load(saved);
    }
    expect(whole.length).toBeGreaterThan(1);
    expect(whole.length).toBeLessThan(12);
    await deleteCheckpoint(join(folder, checkpointName(whole[0], 'sharded')));
    await save(13);
    await load(13);
  });
});
