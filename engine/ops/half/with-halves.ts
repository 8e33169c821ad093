import type { Kernel, TiledVariant } from '../kernel.ts';
import { wgslName } from '../kernel.ts';
import { unpackHalves } from './half.ts';

const made = new WeakMap<Kernel, Map<string, Kernel>>();

/**
 * The kernel with some operands that it only reads stored as halves: wherever its text indexes such an operand, the half
 * is unpacked; arithmetic stays in float32. The same kernel and names give the same object. Throws RangeError for an
 * operand that it writes or that is not f32.
 */
export function withHalves(kernel: Kernel, names: readonly string[]): Kernel {
  if (names.length === 0) return kernel;
  const key = [...names].sort().join(', ');
  const known = made.get(kernel)?.get(key);
  if (known) return known;
  const isHalf = (name: string) => names.includes(name);
  for (const { name, dtype, access } of kernel.operands)
    if (isHalf(name) && (dtype !== 'f32' || access !== 'read'))
      throw new RangeError(`${kernel.name}: ${name} is not an operand of floats that is only read`);
  const halved: Kernel = {
    ...kernel,
    name: `${kernel.name}, half ${key}`,
    halves: names,
    operands: kernel.operands.map((o) => (isHalf(o.name) ? { ...o, dtype: 'f16' } : o)),
    run: (views, params) =>
      kernel.run(
        views.map((view, i) => (isHalf(kernel.operands[i].name) ? unpackHalves(view as Uint32Array) : view)),
        params,
      ),
    wgsl: readingHalves(kernel.wgsl, names, []),
    tiled: kernel.tiled && halvedVariant(kernel.tiled, names),
  };
  made.set(kernel, (made.get(kernel) ?? new Map()).set(key, halved));
  return halved;
}

function halvedVariant(variant: TiledVariant, names: readonly string[]): TiledVariant {
  return {
    ...variant,
    wgsl: readingHalves(variant.wgsl, names, variant.vectors ?? []),
    ...(variant.special && { special: variant.special.map((special) => halvedVariant(special, names)) }),
  };
}

/** The text with `name[index]` as a call that unpacks, and those functions. `vectors` are read four at a time. */
function readingHalves(wgsl: string, names: readonly string[], vectors: readonly string[]): string {
  const functions = names.map((name) => {
    const operand = wgslName(name);
    if (vectors.includes(name))
      return `fn half_${operand}(at: u32) -> vec4f { let words = ${operand}[at]; return vec4f(unpack2x16float(words.x), unpack2x16float(words.y)); }`;
    return `fn half_${operand}(at: u32) -> f32 { return unpack2x16float(${operand}[at >> 1u] >> (16u * (at & 1u))).x; }`;
  });
  return `${functions.join('\n')}\n${names.reduce((text, name) => replaceReads(text, wgslName(name)), wgsl)}`;
}

function replaceReads(text: string, operand: string): string {
  const read = new RegExp(`(?<![\\w.])${operand}\\[`);
  let rest = text;
  let replaced = '';
  for (let at = rest.search(read); at >= 0; at = rest.search(read)) {
    const open = at + operand.length;
    const close = closingBracket(rest, open);
    replaced += `${rest.slice(0, at)}half_${operand}(`;
    // The index may hold further reads.
    rest = `${rest.slice(open + 1, close)})${rest.slice(close + 1)}`;
  }
  return replaced + rest;
}

function closingBracket(text: string, open: number): number {
  let depth = 0;
  for (let at = open; at < text.length; at++) {
    if (text[at] === '[') depth++;
    if (text[at] === ']') depth--;
    if (depth === 0) return at;
  }
  throw new RangeError(`a bracket of the kernel is not closed: ${text.slice(open, open + 40)}`);
}
