import { availableParallelism } from 'node:os';

/** Fewest and most threads of a process that copies. Beyond the most, copies over PCIe do not get faster. */
const [FEWEST_THREADS, MOST_THREADS] = [4, 16];

/**
 * From so many bytes on a copy stores past the caches, with the C library of x86 (others ignore it): what a rank copies is read
 * once, by the device or by a peer, and a store that goes through a cache first reads what it overwrites. 50 instead of 34 GB/s
 * out of staging on two H200. A software adapter copies what it reads again soon, and keeps the library's own threshold.
 */
const PAST_CACHES = 'glibc.cpu.x86_non_temporal_threshold=0x40000';

/**
 * What the environment of each of so many processes that copy to and from a device has to say before it starts: how many
 * threads it has beside its main one, for its copies and in Node's own pool, and how the C library copies.
 */
export function copyEnvironment(
  processes: number,
  onGpu: boolean,
  cores = availableParallelism(),
): { readonly UV_THREADPOOL_SIZE: string; readonly GLIBC_TUNABLES?: string } {
  const threads = Math.min(MOST_THREADS, Math.max(FEWEST_THREADS, Math.floor(cores / processes)));
  return { UV_THREADPOOL_SIZE: String(threads), ...(onGpu && { GLIBC_TUNABLES: PAST_CACHES }) };
}
