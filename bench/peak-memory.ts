import { readFile, writeFile } from 'node:fs/promises';

/** Forgets the most memory that this process had, and returns what it has now, in bytes. Linux. */
export async function beginPeak(): Promise<number> {
  await writeFile('/proc/self/clear_refs', '5');
  return statusBytes('VmRSS');
}

/** How far the most memory since `beginPeak` is above what there was then, in bytes. */
export async function peakGrowthBytes(before: number): Promise<number> {
  return (await statusBytes('VmHWM')) - before;
}

async function statusBytes(field: string): Promise<number> {
  const [, kib] = new RegExp(`^${field}:\\s+(\\d+) kB$`, 'm').exec(await readFile('/proc/self/status', 'utf8')) ?? [];
  if (kib === undefined) throw new Error(`/proc/self/status has no ${field}`);
  return Number(kib) * 1024;
}
