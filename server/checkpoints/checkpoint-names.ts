import { lstat } from 'node:fs/promises';
import { join } from 'node:path';
import { StudioError } from '../../engine/errors.ts';
import { absent, DIGEST_SUFFIX } from '../../engine/node/file-bytes.ts';
import type { CheckpointKind } from '../contract.ts';

/** What a brought file may end in; a folder has no ending. */
export const CHECKPOINT_ENDINGS: readonly string[] = ['.safetensors', '.pt', '.pth', '.ckpt', '.bin'];

/** What a file of each form ends in. */
export const ENDING_OF: Readonly<Record<CheckpointKind, string>> = {
  full: '.ckpt',
  safetensors: '.safetensors',
  sharded: '',
};

/** A name without the ending that says its form. */
export function withoutEnding(name: string): string {
  const ending = CHECKPOINT_ENDINGS.find((each) => name.toLowerCase().endsWith(each)) ?? '';
  return name.slice(0, name.length - ending.length);
}

/** Most of a stem. With a number, an ending and the suffix of a list of digests it fits into the name field of a tar. */
const STEM_CHARACTERS = 60;
const STEM_BYTES = 80;

/**
 * A stem as it may stand in a folder of ours: letters, digits and `._-`, at most 60 of them and 80 bytes in UTF-8, hidden from
 * nobody, and never what the digests beside another checkpoint would be called.
 */
export function safeStem(text: string, fallback: string): string {
  const clean = text.replaceAll(/[^\p{L}\p{N}._-]+/gu, '-').replace(/^[.-]+/, '');
  // Whole characters: half of one is no text, and a disk keeps another name than it was given.
  let stem = '';
  let characters = 0;
  for (const character of clean) {
    if (++characters > STEM_CHARACTERS || Buffer.byteLength(stem + character) > STEM_BYTES) break;
    stem += character;
  }
  while (stem.toLowerCase().endsWith(DIGEST_SUFFIX)) stem = stem.slice(0, -DIGEST_SUFFIX.length);
  return stem || fallback;
}

/** The name, or the first of name-2, name-3, … that is free in `folder`. Throws `conflict` after ten thousand. */
export async function freeName(folder: string, stem: string, ending: string): Promise<string> {
  for (let number = 1; number < 10_000; number++) {
    const name = `${stem}${number === 1 ? '' : `-${number}`}${ending}`;
    if (await isFree(folder, name)) return name;
  }
  throw new StudioError('conflict', `There are too many checkpoints called ${stem}. Give yours another name.`);
}

/** Whether nothing has the name, and no folder that of the digests beside it. */
export async function isFree(folder: string, name: string): Promise<boolean> {
  const path = join(folder, name);
  if (await lstat(path).catch(absent)) return false;
  return !(await lstat(`${path}${DIGEST_SUFFIX}`).catch(absent))?.isDirectory();
}
