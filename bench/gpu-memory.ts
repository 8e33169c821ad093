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

/** Lines as "00000000:1B:00.0, 1234". */
export function parseGpus(text: string): GpuReading[] {
  return text
    .trim()
    .split('\n')
    .filter((each) => each.includes(','))
    .map((each) => {
      const [bus, used] = each.split(',').map((cell) => cell.trim());
      return { pciId: bus.toLowerCase().slice(-12), usedMiB: Number(used) };
    });
}
