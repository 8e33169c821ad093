import { availableParallelism } from 'node:os';

/**
 * What a worker gets of the server's environment: what finding programs, libraries, drivers and temporary files needs. No
 * tokens, no NODE_OPTIONS, nothing else that somebody exported.
 */
const ALLOWED = new Set([
  'PATH',
  'HOME',
  'USER',
  'LOGNAME',
  'LANG',
  'LC_ALL',
  'TZ',
  'TMPDIR',
  'LD_LIBRARY_PATH',
  'XDG_CACHE_HOME',
  'XDG_CONFIG_HOME',
  'XDG_CONFIG_DIRS',
  'XDG_DATA_HOME',
  'XDG_DATA_DIRS',
  'XDG_RUNTIME_DIR',
  'VK_DRIVER_FILES',
  'VK_ICD_FILENAMES',
  'VK_ADD_DRIVER_FILES',
  'CUDA_VISIBLE_DEVICES',
  'NVIDIA_VISIBLE_DEVICES',
  'NVIDIA_DRIVER_CAPABILITIES',
]);

/** Fewest and most threads of a worker's pool. Beyond the most, copies over PCIe do not get faster. */
const [FEWEST_THREADS, MOST_THREADS] = [4, 16];

/**
 * From so many bytes on a copy stores past the caches, with the C library of x86 (others ignore it): what a rank copies is read
 * once, by the device or by a peer, and a store that goes through a cache first reads what it overwrites. 50 instead of 34 GB/s
 * out of staging on two H200. A software adapter copies what it reads again soon, and keeps the library's own threshold.
 */
const PAST_CACHES = 'glibc.cpu.x86_non_temporal_threshold=0x40000';

/**
 * The environment of a worker process, one of `workers` of its run. Its copies to and from the device and its file accesses
 * share Node's thread pool, which has only four threads unless told otherwise before the process starts.
 */
export function runEnvironment(workers: number, onGpu: boolean, cores = availableParallelism()): NodeJS.ProcessEnv {
  const threads = Math.min(MOST_THREADS, Math.max(FEWEST_THREADS, Math.floor(cores / workers)));
  const environment = { ...workerEnvironment(), UV_THREADPOOL_SIZE: String(threads) };
  return onGpu ? { ...environment, GLIBC_TUNABLES: PAST_CACHES } : environment;
}

/** What every process that the server starts gets of its environment. */
export function workerEnvironment(from: NodeJS.ProcessEnv = process.env): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(from).filter(([name]) => ALLOWED.has(name))) as NodeJS.ProcessEnv;
}
