import type { Kernel, Params, TiledVariant, View } from '../kernel.ts';
import { matmulNN, matmulNNBias, matmulNT, matmulNTBias, matmulTN } from '../matmul/matmul.ts';
import { matmulNNGated, matmulNTReluDrop } from '../matmul/matmul-hidden.ts';
import { matrixParts, matrixVariants } from '../matmul/matmul-matrix.ts';
import { matmulNNParts, PARTS } from '../matmul/matmul-parts.ts';
import type { MatmulLayout } from '../matmul/matmul-wgsl.ts';
import { packHalves, unpackHalves } from './half.ts';
import { withHalves } from './with-halves.ts';

/** The matmuls that tensor cores can do. */
const layouts: ReadonlyMap<Kernel, MatmulLayout> = new Map([
  [matmulNT, 'nt'],
  [matmulNTBias, 'nt'],
  [matmulNTReluDrop, 'nt'],
  [matmulNN, 'nn'],
  [matmulNNBias, 'nn'],
  [matmulNNGated, 'nn'],
  [matmulNNParts, 'nn'],
  [matmulTN, 'tn'],
]);

const made = new WeakMap<Kernel, Map<string, Kernel>>();

/**
 * The matmul with some operands stored as halves, on tensor cores: factors that are stored as float32 are rounded to halves
 * first, sums are float32. `halves` may name the result `c`, which then is rounded as it is stored, and added to nothing.
 * Null where the kernel is no matmul, or of a shape that has no such variant or gains nothing by it. The same kernel and
 * names give the same object.
 */
export function onTensorCores(kernel: Kernel, halves: readonly string[], params: Params): Kernel | null {
  const layout = layouts.get(kernel);
  if (!layout) return null;
  const key = [...halves].sort().join(', ');
  let result = made.get(kernel)?.get(key);
  if (!result) {
    result = withVariants(kernel, halves, variantsOf(kernel, layout, halves));
    made.set(kernel, (made.get(kernel) ?? new Map()).set(key, result));
  }
  return result.tiled?.fits(params) ? result : null;
}

function variantsOf(kernel: Kernel, layout: MatmulLayout, halves: readonly string[]): readonly TiledVariant[] {
  const has = (operand: string) => kernel.operands.some(({ name }) => name === operand);
  const [bias, gate] = [has('bias'), has('hidden')];
  // Neither a bias nor a gate has a place as float32.
  if ((bias && !halves.includes('bias')) || (gate && !halves.includes('hidden'))) return [];
  const type = (name: string) => (halves.includes(name) ? 'f16' : 'f32');
  const operands = { a: type('a'), b: type('b'), c: type('c'), bias, gate, drop: has('control') } as const;
  return kernel === matmulNNParts ? matrixParts(operands, PARTS) : matrixVariants(layout, operands);
}

function withVariants(kernel: Kernel, halves: readonly string[], variants: readonly TiledVariant[]): Kernel {
  const halved = withHalves(
    kernel,
    halves.filter((name) => name !== 'c'),
  );
  const packs = halves.includes('c');
  const rounded = (view: View, i: number): View => {
    const { name, dtype } = halved.operands[i];
    if (name === 'c') return packs ? unpackHalves(view as Uint32Array) : view;
    const isFactor = (name === 'a' || name === 'b') && dtype === 'f32';
    return isFactor ? unpackHalves(packHalves(view as Float32Array), view.length) : view;
  };
  const fits = (params: Params) => variants.some((variant) => variant.fits(params));
  const first = variants[0];
  return {
    ...halved,
    name: `${packs ? `${kernel.name}, half ${[...halves].sort().join(', ')}` : halved.name}, tensor cores`,
    halves,
    operands: halved.operands.map((o) => (packs && o.name === 'c' ? { ...o, dtype: 'f16', access: 'write' } : o)),
    run(views, params) {
      const operands = views.map(rounded);
      halved.run(operands, params);
      const c = halved.operands.findIndex(({ name }) => name === 'c');
      if (packs) views[c].set(packHalves(operands[c] as Float32Array));
    },
    tiled: first && { ...first, fits, special: variants },
  };
}
