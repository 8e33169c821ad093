import type { Kernel } from './kernel.ts';

/** Every kernel, by name. */
export const kernels: ReadonlyMap<string, Kernel> = new Map(
  (
    [
      // One a line, by folder.
    ] as readonly Kernel[]
  ).map((kernel) => [kernel.name, kernel]),
);
