import type { ExperimentConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import type { CompiledRun } from './compile.ts';

/**
 * Bytes of host memory that one rank's schedule needs, the same on every rank: its mailbox regions, in which peers read it,
 * and with CPU offload the tensors that are kept on the host beside them.
 */
export function hostBytesOf({ steps, regions }: Pick<CompiledRun, 'steps' | 'regions'>): number {
  // A tensor that is a region has its bytes there; batch shapes share state by name.
  const own = new Map<string, number>();
  for (const { schedule } of steps)
    for (const t of schedule.tensors) if (t.space === 'host' && t.region === undefined) own.set(t.name, t.bytes);
  const tensors = [...own.values()].reduce((sum, bytes) => sum + bytes, 0);
  return regions.reduce((sum, region) => sum + region.bytes, tensors);
}

/**
 * Refuses a run whose ranks together need more host memory than is free. On a software adapter the ranks' buffers are host
 * memory too. Throws StudioError `out-of-memory` that names the setting, what is needed and what is free, in bytes.
 */
export function refuseHostMemory(
  config: Pick<ExperimentConfig, 'strategy' | 'devices' | 'adapter'>,
  run: Pick<CompiledRun, 'steps' | 'regions' | 'memory' | 'world'>,
  machine: { readonly freeBytes: number; readonly software: boolean },
): void {
  const hostBytes = hostBytesOf(run);
  const bufferBytes = machine.software ? run.memory.reservedBytes : 0;
  const neededBytes = (hostBytes + bufferBytes) * run.world;
  if (neededBytes <= machine.freeBytes) return;
  const offload = config.strategy.kind === 'fsdp' && config.strategy.cpuOffload;
  const ranks = run.world === 1 ? 'the rank needs' : `the ${run.world} ranks together need`;
  const buffers = bufferBytes
    ? `, ${bufferBytes} bytes of them for each rank's buffers, which on a software adapter are host memory too`
    : '';
  const [setting, way] = offload
    ? ['strategy.cpuOffload', 'Switch it off where a GPU has the room, or use a smaller model']
    : bufferBytes > hostBytes
      ? ['adapter', 'Use a GPU, FULL_SHARD, or a smaller model or batch']
      : ['devices', 'Use fewer ranks or a smaller model'];
  throw new StudioError(
    'out-of-memory',
    `${setting}: ${ranks} ${neededBytes} bytes of host memory${buffers}, and this machine has ${machine.freeBytes} ` +
      `free. ${way}, or free memory`,
    { setting, neededBytes, hostBytes, freeBytes: machine.freeBytes },
  );
}
