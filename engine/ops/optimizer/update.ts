import { halfWgsl, packHalves, unpackHalves } from '../half/half.ts';
import type { Kernel } from '../kernel.ts';
import { stridedThreads, stridedWgsl } from '../strided.ts';
import { clippingWgsl } from './clipping.ts';
import { skipsUpdateWgsl } from './skip.ts';

/** An optimizer's update as WGSL: what comes before all elements, and what is done to element `e`. */
export interface UpdateRule {
  readonly before: string;
  readonly each: string;
}

/** WGSL of the update of the p.n elements from p.offset of tensors of floats. */
export function updateWgsl({ before, each }: UpdateRule): string {
  return `${stridedWgsl()}${skipsUpdateWgsl}${clippingWgsl}
fn kernel(i: u32) {
  if (skipsUpdate()) { return; }
  ${before}
  let end = p.offset + min(p.n, stridedEnd(i));
  for (var e = p.offset + stridedFirst(i); e < end; e += STRIDE) {
    ${each}
  }
}
`;
}

/**
 * The same update of tensors that are stored as halves, all but the control tensor: a thread has both halves of a word, and
 * computes in float32. `n` and `offset` are even.
 */
export function halfUpdate(kernel: Kernel, rule: UpdateRule): Kernel {
  const stored = kernel.operands.filter(({ name }) => name !== 'control');
  const written = stored.filter(({ access }) => access !== 'read');
  const lines = (of: typeof stored, line: (name: string) => string) => of.map(({ name }) => line(name)).join('\n    ');
  const of = (half: string) => rule.each.replace(/\b(\w+)\[e\]/g, `${half}_$1`);
  return {
    ...kernel,
    name: `${kernel.name}-half`,
    operands: kernel.operands.map((o) => (stored.includes(o) ? { ...o, dtype: 'f16' } : o)),
    threads: ({ n }) => stridedThreads(n / 2),
    tiled: undefined,
    run(views, params) {
      const floats = views.map((view, i) =>
        stored.includes(kernel.operands[i]) ? unpackHalves(view as Uint32Array) : view,
      );
      kernel.run(floats, params);
      views.forEach((view, i) => {
        if (written.includes(kernel.operands[i])) view.set(packHalves(floats[i] as Float32Array));
      });
    },
    wgsl: `${stridedWgsl()}${skipsUpdateWgsl}${clippingWgsl}${halfWgsl}
fn kernel(i: u32) {
  if (skipsUpdate()) { return; }
  ${rule.before}
  let end = min(p.n / 2u, stridedEnd(i));
  for (var w = stridedFirst(i); w < end; w += STRIDE) {
    let word = p.offset / 2u + w;
    ${lines(stored, (name) => `var low_${name} = ofHalf(${name}[word] & 0xffffu); var high_${name} = ofHalf(${name}[word] >> 16u);`)}
    {${of('low')}}
    {${of('high')}}
    ${lines(written, (name) => `${name}[word] = halfOf(low_${name}) | (halfOf(high_${name}) << 16u);`)}
  }
}
`,
  };
}
