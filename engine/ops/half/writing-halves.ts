import { type Kernel, type Params, type TiledVariant, wgslName } from '../kernel.ts';
import { halfWgsl, packHalves, unpackHalves } from './half.ts';

const made = new WeakMap<Kernel, Map<string, Kernel | null>>();

/**
 * The kernel with some operands that it only writes stored as halves, rounded as they are stored: for real GPUs, by those of
 * its variants that store them 16 bytes at a time and read them nowhere. Null where these parameters have no such variant.
 * The same kernel and names give the same object.
 */
export function writingHalves(kernel: Kernel, names: readonly string[], params: Params): Kernel | null {
  if (names.length === 0) return kernel;
  const key = [...names].sort().join(', ');
  let result = made.get(kernel)?.get(key);
  if (result === undefined) {
    result = halved(kernel, names, key);
    made.set(kernel, (made.get(kernel) ?? new Map()).set(key, result));
  }
  return result?.tiled?.fits(params) ? result : null;
}

function halved(kernel: Kernel, names: readonly string[], key: string): Kernel | null {
  const isHalf = (name: string) => names.includes(name);
  if (kernel.operands.some(({ name, dtype, access }) => isHalf(name) && (dtype !== 'f32' || access !== 'write')))
    return null;
  const { tiled } = kernel;
  const variants = tiled
    ? [...(tiled.special ?? []), { ...tiled, special: undefined }].flatMap((variant) => halvedVariant(variant, names))
    : [];
  if (variants.length === 0) return null;
  return {
    ...kernel,
    name: `${kernel.name}, to half ${key}`,
    halves: [...(kernel.halves ?? []), ...names],
    operands: kernel.operands.map((o) => (isHalf(o.name) ? { ...o, dtype: 'f16' } : o)),
    run(views, params) {
      const operands = views.map((view, i) =>
        isHalf(kernel.operands[i].name) ? unpackHalves(view as Uint32Array) : view,
      );
      kernel.run(operands, params);
      operands.forEach((operand, i) => {
        if (isHalf(kernel.operands[i].name)) views[i].set(packHalves(operand as Float32Array));
      });
    },
    tiled: { ...variants[0], fits: (params) => variants.some((variant) => variant.fits(params)), special: variants },
  };
}

/** The variant with its stores to these operands through halves; none where it stores less than 16 bytes, or reads them. */
function halvedVariant(variant: TiledVariant, names: readonly string[]): TiledVariant[] {
  if (!names.every((name) => variant.vectors?.includes(name))) return [];
  const stores = names.map((name) => new RegExp(`(?<![\\w.])(${wgslName(name)}\\[[^;=]*\\]) = ([^;]*);`, 'g'));
  const wgsl = stores.reduce((text, store) => text.replace(store, '$1 = halves($2);'), variant.wgsl);
  const indexed = new RegExp(`(?<![\\w.])(?:${names.map(wgslName).join('|')})\\[`, 'g');
  if ((wgsl.match(indexed) ?? []).length !== (wgsl.match(/ = halves\(/g) ?? []).length) return [];
  const functions = wgsl.includes('fn halfOf(') ? '' : halfWgsl;
  return [{ ...variant, wgsl: `${functions}${HALVES_WGSL}${wgsl}` }];
}

const HALVES_WGSL = `
fn halves(v: vec4f) -> vec2u {
  return vec2u(halfOf(v.x) | (halfOf(v.y) << 16u), halfOf(v.z) | (halfOf(v.w) << 16u));
}
`;
