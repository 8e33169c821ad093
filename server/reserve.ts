import { randomBytes } from 'node:crypto';
import { rm, stat, statfs, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { StudioError } from '../engine/errors.ts';

/** Enough for the states and the last events of every run that may be under way. */
export const RESERVE_BYTES = 8 * 2 ** 20;

/**
 * Room on the disk of the data folder, held by a file and given back when the disk is full: so a studio still starts there,
 * stores how its runs ended and deletes what a person no longer needs. Nothing new is begun until there is room again.
 */
export class Reserve {
  readonly #root: string;
  readonly #file: string;

  constructor(root: string) {
    this.#root = root;
    this.#file = join(root, 'reserve');
  }

  /** Gives the room back; false where it is given already. */
  async release(): Promise<boolean> {
    const held = await stat(this.#file).catch(() => null);
    await rm(this.#file, { force: true });
    return held !== null;
  }

  /** Whether less than as much again is left beside what is reserved, which is as good as nothing. */
  async isFull(): Promise<boolean> {
    const { bavail, bsize } = await statfs(this.#root);
    return bavail * bsize < ((await this.#isHeld()) ? RESERVE_BYTES : 2 * RESERVE_BYTES);
  }

  /** Takes the room, where it is not held and the disk is not full. */
  async hold(): Promise<void> {
    if ((await this.#isHeld()) || (await this.isFull())) return;
    // Random: a file system that compresses would keep nothing for zeros.
    await writeFile(this.#file, randomBytes(RESERVE_BYTES), { mode: 0o600 });
  }

  /** Refuses what is new, with `io`, while the disk is full; takes the room again when it is not. */
  async refuseWhenFull(): Promise<void> {
    if (await this.isFull())
      throw new StudioError(
        'io',
        'The disk of the data folder is full, so no run is taken: it could save nothing. Delete runs or files, or make room there otherwise.',
        { code: 'ENOSPC' },
      );
    // One that fills up meanwhile is the next one's to tell.
    await this.hold().catch(() => undefined);
  }

  /** A file that was cut short holds nothing. */
  async #isHeld(): Promise<boolean> {
    return (await stat(this.#file).catch(() => null))?.size === RESERVE_BYTES;
  }
}
