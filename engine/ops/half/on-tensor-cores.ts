import type { Kernel, Params, TiledVariant, View } from '../kernel.ts';
import { matmulNN, matmulNNBias, matmulNT, matmulNTBias, matmulTN } from '../matmul/matmul.ts';
import { matrixVariants } from '../matmul/matmul-matrix.ts';
import type { MatmulLayout } from '../matmul/matmul-wgsl.ts';
import { packHalves, unpackHalves } from './half.ts';
import { withHalves } from './with-halves.ts';

/** The matmuls that tensor cores can do. */
const layouts: ReadonlyMap<Kernel, MatmulLayout> = new Map([
  [matmulNT, 'nt'],
  [matmulNTBias, 'nt'],
  [matmulNN, 'nn'],
  [matmulNNBias, 'nn'],
  [matmulTN, 'tn'],
]);

const made = new WeakMap<Kernel, Kernel>();

/**
 * The matmul with some operands stored as halves, as withHalves makes it, on tensor cores: factors that are stored as float32
 * are rounded to halves first, sums are float32. Null where the kernel is no matmul, or of a shape that has no such variant or
 * gains nothing by it. The same kernel and names give the same object.
 */
export function onTensorCores(kernel: Kernel, halves: readonly string[], params: Params): Kernel | null {
  const halved = withHalves(kernel, halves);
  let result = made.get(halved);
  if (!result) {
    result = withVariants(halved, variantsOf(kernel, halves));
    made.set(halved, result);
  }
  return result.tiled?.fits(params) ? result : null;
}

function variantsOf(kernel: Kernel, halves: readonly string[]): readonly TiledVariant[] {
  const layout = layouts.get(kernel);
  const bias = kernel.operands.some(({ name }) => name === 'bias');
  // A bias in float32 has no place among products of halves.
  if (!layout || (bias && !halves.includes('bias'))) return [];
  const type = (name: string) => (halves.includes(name) ? 'f16' : 'f32');
  return matrixVariants(layout, { a: type('a'), b: type('b'), bias });
}

function withVariants(halved: Kernel, variants: readonly TiledVariant[]): Kernel {
  const rounded = (view: View, i: number) => {
    const { name, dtype } = halved.operands[i];
    const isFactor = (name === 'a' || name === 'b') && dtype === 'f32';
    return isFactor ? unpackHalves(packHalves(view as Float32Array), view.length) : view;
  };
  const fits = (params: Params) => variants.some((variant) => variant.fits(params));
  const first = variants[0];
  return {
    ...halved,
    name: `${halved.name}, tensor cores`,
    run: (views, params) => halved.run(views.map(rounded), params),
    tiled: first && { ...first, fits, special: variants },
  };
}
