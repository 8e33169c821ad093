import { execFile } from 'node:child_process';

/** What the driver says that a GPU holds, of all processes. */
export interface GpuReading {
  /** As Vulkan and the studio write it: 0000:1b:00.0. */
  readonly pciId: string;
  readonly usedMiB: number;
}

/** The NVIDIA GPUs of this machine; none where nvidia-smi is not there or does not answer within five seconds. */
export function readGpus(): Promise<GpuReading[]> {
  const query = ['--query-gpu=pci.bus_id,memory.used', '--format=csv,noheader,nounits'];
  return new Promise((resolve) => {
    execFile('nvidia-smi', query, { timeout: 5000 }, (error, text) => resolve(error ? [] : parseGpus(text)));
  });
}

/** What one process holds of a GPU. */
export interface ProcessReading extends GpuReading {
  readonly pid: number;
}

/** The processes that the driver lists with memory on a GPU; none where nvidia-smi is not there or lists none. */
export function readGpuProcesses(): Promise<ProcessReading[]> {
  const query = ['--query-compute-apps=gpu_bus_id,pid,used_memory', '--format=csv,noheader,nounits'];
  return new Promise((resolve) => {
    execFile('nvidia-smi', query, { timeout: 5000 }, (error, text) => resolve(error ? [] : parseProcesses(text)));
  });
}

/** Lines as "00000000:1B:00.0, 4711, 1234". */
export function parseProcesses(text: string): ProcessReading[] {
  const cells = text
    .trim()
    .split('\n')
    .map((each) => each.split(',').map((cell) => cell.trim()));
  return cells.flatMap(([bus, pid, used]) => {
    const reading = { pciId: pciIdOf(bus), pid: Number(pid), usedMiB: Number(used) };
    return reading.pid > 0 && reading.usedMiB >= 0 ? [reading] : [];
  });
}

/** Lines as "00000000:1B:00.0, 1234". */
export function parseGpus(text: string): GpuReading[] {
  return text
    .trim()
    .split('\n')
    .filter((each) => each.includes(','))
    .map((each) => {
      const [bus, used] = each.split(',').map((cell) => cell.trim());
      return { pciId: pciIdOf(bus), usedMiB: Number(used) };
    });
}

function pciIdOf(bus: string): string {
  return bus.toLowerCase().slice(-12);
}
