import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { freeName, safeStem } from './checkpoint-names.ts';

it('a long name is cut between characters, by their number and by their bytes', () => {
  expect(safeStem('a'.repeat(100), 'none')).toBe('a'.repeat(60));
  expect(safeStem('漢'.repeat(60), 'none')).toBe('漢'.repeat(26));
  // Two code units and four bytes each: the cut would come within one, whatever stands before it.
  for (const start of ['', 'a', 'ab', 'abc']) {
    const stem = safeStem(start + '𠮷'.repeat(60), 'none');
    expect(Buffer.from(stem).toString(), start).toBe(stem);
    expect(stem).toMatch(new RegExp(`^${start}𠮷{19,20}$`, 'u'));
    const odd = safeStem(`${'a'.repeat(58)}${start}𠮷𠮷`, 'none');
    expect(Buffer.from(odd).toString(), start).toBe(odd);
  }
});

it('what is no letter, digit or mark of a name becomes a dash, and nothing is hidden', () => {
  expect(safeStem('..-my model (2)', 'none')).toBe('my-model-2-');
  expect(safeStem('\ud842', 'none')).toBe('none');
  expect(safeStem('...', 'none')).toBe('none');
});

it('nothing is called as the digests beside another checkpoint', async () => {
  expect(safeStem('x.ckpt.sha256', 'none')).toBe('x.ckpt');
  expect(safeStem('x.SHA256.sha256', 'none')).toBe('x');
  expect(safeStem('.sha256', 'none')).toBe('sha256');
  expect(safeStem(`${'a'.repeat(53)}.sha256-and-more`, 'none')).toBe('a'.repeat(53));
  const folder = await mkdtemp(join(tmpdir(), 'checkpoint-names-'));
  try {
    await mkdir(join(folder, 'x.ckpt.sha256'));
    expect(await freeName(folder, 'x', '.ckpt')).toBe('x-2.ckpt');
    // A list that was left without its checkpoint is replaced.
    await writeFile(join(folder, 'y.ckpt.sha256'), 'of nothing');
    expect(await freeName(folder, 'y', '.ckpt')).toBe('y.ckpt');
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});
