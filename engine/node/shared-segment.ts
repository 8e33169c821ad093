import { randomUUID } from 'node:crypto';
import { closeSync, ftruncateSync, openSync, statfsSync, unlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import koffi, { type KoffiFunc } from 'koffi';
import { StudioError } from '../errors.ts';

/**
 * Memory that several processes map. It has no name in the file system from the start, so a killed process leaves
 * nothing behind, and /dev/shm's own limit (64 MB in a container) does not count. Another process opens it as
 * /proc/PID/fd/FD for as long as the maker keeps the descriptor open; what is mapped stays.
 */
export interface SharedSegment {
  readonly fd: number;
  readonly bytes: number;
}

/** koffi.view aborts the process over 4 GiB; half of that leaves no question of sign. */
export const MAX_VIEW_BYTES = 2 ** 31;

const PAGE_BYTES = 4096;
/** How much is taken between two looks at what is left. */
const STEP_BYTES = 64 * 2 ** 20;
/** What must stay free for everybody else, or the kernel starts to kill. */
const RESERVE_BYTES = 128 * 2 ** 20;
const TMPFS_MAGIC = 0x01021994;

const PROT_READ_WRITE = 1 | 2;
const MAP_SHARED = 1;
const MAP_POPULATE = 0x8000;
const MFD_CLOEXEC = 1;
const MAP_FAILED = 0xffff_ffff_ffff_ffffn;

interface LibC {
  readonly memfdCreate: (name: string, flags: number) => number;
  /** Gives the error number itself. */
  readonly fallocate: KoffiFunc<(fd: number, offset: number, bytes: number) => number>;
  readonly mmap: KoffiFunc<
    (at: null, bytes: number, protection: number, flags: number, fd: number, offset: number) => unknown
  >;
}
let loaded: LibC | undefined;

function libc(): LibC {
  if (loaded) return loaded;
  const library = koffi.load('libc.so.6');
  loaded = {
    memfdCreate: library.func('int memfd_create(const char *name, unsigned int flags)'),
    fallocate: library.func('int posix_fallocate(int fd, int64_t offset, int64_t bytes)') as LibC['fallocate'],
    mmap: library.func(
      'void *mmap(void *at, size_t bytes, int protection, int flags, int fd, int64_t offset)',
    ) as LibC['mmap'],
  };
  return loaded;
}

/**
 * Takes `bytes` of memory, every page of them, so that a machine that is full says so here and not by a signal later.
 * When memory does not suffice the pages come from an unnamed file in the folder for temporary files, which is slow;
 * `onNotice` hears of it. Throws StudioError `out-of-memory` with the bytes needed and free when neither has room.
 */
export async function createSharedSegment(
  bytes: number,
  options: { readonly memoryLimitBytes?: number; readonly onNotice?: (text: string) => void } = {},
): Promise<SharedSegment> {
  const room = () => Math.min(options.memoryLimitBytes ?? Number.POSITIVE_INFINITY, freeMemoryBytes());
  if (bytes <= room()) {
    const fd = libc().memfdCreate('shard-studio', MFD_CLOEXEC);
    if (fd >= 0 && (await allocate(fd, bytes, freeMemoryBytes))) return { fd, bytes };
    if (fd >= 0) closeSync(fd);
  }
  const folder = tmpdir();
  const freeDisk = freeDiskBytes(folder);
  if (bytes <= freeDisk) {
    const path = join(folder, `shard-studio-${randomUUID()}`);
    const fd = openSync(path, 'wx+', 0o600);
    unlinkSync(path);
    if (await allocate(fd, bytes, () => freeDiskBytes(folder))) {
      options.onNotice?.(
        `The ranks exchange through a file in ${folder}, since ${mebibytes(bytes)} do not fit into the ` +
          `${mebibytes(room())} of memory that are free. This is slow; use fewer ranks or a smaller model, or free memory.`,
      );
      return { fd, bytes };
    }
    closeSync(fd);
  }
  throw new StudioError(
    'out-of-memory',
    `A rank needs ${mebibytes(bytes)} of host memory to exchange with its peers, but ${mebibytes(room())} of memory ` +
      `and ${mebibytes(freeDisk)} in ${folder} are free. Use fewer ranks or a smaller model, or free memory.`,
    { neededBytes: bytes, freeMemoryBytes: room(), freeDiskBytes: freeDisk },
  );
}

/** Takes the pages step by step; gives up, false, when there is no more room. */
async function allocate(fd: number, bytes: number, freeBytes: () => number): Promise<boolean> {
  ftruncateSync(fd, bytes);
  const { fallocate } = libc();
  for (let offset = 0; offset < bytes; offset += STEP_BYTES) {
    const step = Math.min(STEP_BYTES, bytes - offset);
    if (step > freeBytes()) return false;
    const code = await new Promise<number>((resolve, reject) =>
      fallocate.async(fd, offset, step, (error: Error | null, result: number) =>
        error ? reject(error) : resolve(result),
      ),
    );
    if (code === koffi.os.errno.ENOSPC || code === koffi.os.errno.ENOMEM) return false;
    if (code !== 0) throw new StudioError('io', `Shared memory cannot be taken: posix_fallocate gave error ${code}.`);
  }
  return true;
}

/** What of the machine's memory, or of this control group's, can be taken without the kernel having to kill. */
export function freeMemoryBytes(): number {
  return Math.max(0, process.availableMemory() - RESERVE_BYTES);
}

/** The room in a folder on a disk; none when the folder itself lies in memory. */
function freeDiskBytes(folder: string): number {
  const { type, bavail, bsize } = statfsSync(folder);
  return type === TMPFS_MAGIC ? 0 : Math.max(0, bavail * bsize - RESERVE_BYTES);
}

/**
 * Maps a part of the segment, its pages at once, as an ordinary ArrayBuffer over the same bytes. `offset` is a multiple
 * of 4096, `bytes` at most MAX_VIEW_BYTES. The mapping lasts as long as the process: to unmap under a view is a crash.
 */
export async function mapSegment(fd: number, offset: number, bytes: number): Promise<ArrayBuffer> {
  if (offset % PAGE_BYTES !== 0 || bytes > MAX_VIEW_BYTES) throw new RangeError(`a view of ${bytes} at ${offset}`);
  const { mmap } = libc();
  const flags = MAP_SHARED | MAP_POPULATE;
  const address = await new Promise<unknown>((resolve, reject) =>
    mmap.async(null, bytes, PROT_READ_WRITE, flags, fd, offset, (error: Error | null, result: unknown) =>
      error ? reject(error) : resolve(result),
    ),
  );
  if (koffi.address(address) === MAP_FAILED) {
    throw new StudioError('out-of-memory', `${mebibytes(bytes)} of shared memory cannot be mapped.`, {
      neededBytes: bytes,
    });
  }
  return koffi.view(address, bytes);
}

function mebibytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}
