import type { KernelCase } from './kernel-case.ts';

/** The cases of every kernel, for the test that runs them on a device. */
export const allCases: readonly KernelCase[] = [
  // One folder's cases a line.
];
