import { WORKGROUP_THREADS } from './kernel.ts';

/**
 * Element-wise kernels give a thread four elements, a workgroup's width apart: neighbouring threads touch neighbouring
 * elements, and what is read once per thread (control, tables) is shared by four.
 */
export const ELEMENTS_PER_THREAD = 4;
const BLOCK = WORKGROUP_THREADS * ELEMENTS_PER_THREAD;

/** Threads that cover n elements with `stridedWgsl`. */
export function stridedThreads(n: number): number {
  return Math.ceil(n / BLOCK) * WORKGROUP_THREADS;
}

/** WGSL: the first element of thread i is `strided(i)`, the next ones follow every STRIDE; all below the count are to be done. */
export const stridedWgsl = `
const STRIDE = ${WORKGROUP_THREADS}u;
fn strided(i: u32) -> u32 { return (i / STRIDE) * ${BLOCK}u + i % STRIDE; }
`;

/** WGSL of a kernel that calls \`element(i)\`, declared in \`body\`, for each i below the count expression. */
export function elementwiseWgsl(count: string, body: string): string {
  return `${stridedWgsl}${body}
fn kernel(i: u32) {
  let first = strided(i);
  for (var k = 0u; k < ${ELEMENTS_PER_THREAD}u; k++) {
    let e = first + k * STRIDE;
    if (e < ${count}) { element(e); }
  }
}
`;
}
