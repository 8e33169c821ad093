import { availableParallelism } from 'node:os';
import { copyEnvironment } from '../../engine/node/copy-environment.ts';

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

/** The environment of a worker process, one of `workers` of its run, on a GPU or not. */
export function runEnvironment(workers: number, onGpu: boolean, cores = availableParallelism()): NodeJS.ProcessEnv {
  return { ...workerEnvironment(), ...copyEnvironment(workers, onGpu, cores) };
}

/** What every process that the server starts gets of its environment. */
export function workerEnvironment(from: NodeJS.ProcessEnv = process.env): NodeJS.ProcessEnv {
  return Object.fromEntries(Object.entries(from).filter(([name]) => ALLOWED.has(name))) as NodeJS.ProcessEnv;
}
