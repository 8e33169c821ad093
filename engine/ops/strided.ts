import { WORKGROUP_THREADS } from './kernel.ts';

/**
 * Element-wise kernels give a thread several elements, a workgroup's width apart: neighbouring threads touch neighbouring
 * elements, and what is read once per thread (control, tables) is shared. Four keep a GPU busy at small sizes; a software
 * adapter would like more.
 */
export const ELEMENTS_PER_THREAD = 4;

/** Threads that cover n elements with `stridedWgsl`. */
export function stridedThreads(n: number, perThread: number = ELEMENTS_PER_THREAD): number {
  return Math.ceil(n / (WORKGROUP_THREADS * perThread)) * WORKGROUP_THREADS;
}

/** WGSL: thread i has the elements `stridedFirst(i)`, and on by STRIDE, below `stridedEnd(i)` and below the count. */
export function stridedWgsl(perThread: number = ELEMENTS_PER_THREAD): string {
  const block = WORKGROUP_THREADS * perThread;
  return `
const STRIDE = ${WORKGROUP_THREADS}u;
fn stridedFirst(i: u32) -> u32 { return (i / STRIDE) * ${block}u + i % STRIDE; }
fn stridedEnd(i: u32) -> u32 { return (i / STRIDE + 1u) * ${block}u; }
`;
}

/** WGSL of a kernel that calls `element(e)`, declared in `body`, for each e below the count expression. */
export function elementwiseWgsl(count: string, body: string): string {
  return `${stridedWgsl()}${body}
fn kernel(i: u32) {
  let end = min(${count}, stridedEnd(i));
  for (var e = stridedFirst(i); e < end; e += STRIDE) { element(e); }
}
`;
}
