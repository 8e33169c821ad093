import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readlinkSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type Lock, tryLock } from './lock-file.ts';

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'lock-'));
  path = join(folder, 'a.lock');
});
afterEach(() => rmSync(folder, { recursive: true }));

const isLock = (result: object): result is Lock => 'release' in result;

it('is had once, and again after release, which leaves nothing', async () => {
  const lock = await tryLock(path);
  expect(isLock(lock)).toBe(true);
  expect(await tryLock(path)).toEqual({ pid: process.pid });
  await (lock as Lock).release();
  expect(readdirSync(folder)).toEqual([]);
  expect(isLock(await tryLock(path))).toBe(true);
});

it('has one winner among many', async () => {
  const results = await Promise.all(Array.from({ length: 50 }, () => tryLock(path)));
  expect(results.filter(isLock)).toHaveLength(1);
});

it('is broken when its owner has ended', async () => {
  const ended = spawnSync(process.execPath, ['-e', '']);
  symlinkSync(`${ended.pid} 1 x`, path);
  expect(isLock(await tryLock(path))).toBe(true);
  expect(readdirSync(folder)).toEqual(['a.lock']);
});

it('is broken when another process has its owner’s pid, or it names no owner', async () => {
  for (const owner of [`${process.pid} 1 x`, 'nonsense']) {
    symlinkSync(owner, path);
    const lock = await tryLock(path);
    expect(isLock(lock)).toBe(true);
    await (lock as Lock).release();
  }
});

it('does not release what another has by then', async () => {
  const lock = (await tryLock(path)) as Lock;
  rmSync(path);
  symlinkSync('1 2 another', path);
  await lock.release();
  expect(readlinkSync(path)).toBe('1 2 another');
  expect(readdirSync(folder)).toEqual(['a.lock']);
});

it('leaves a file that is no lock alone', async () => {
  writeFileSync(path, 'mine');
  await expect(tryLock(path)).rejects.toThrow('EINVAL');
});
