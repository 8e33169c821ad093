import { fill } from '../ops/fill/fill.ts';
import { mix, streamKey } from '../ops/init-values/hash.ts';
import { initNormal } from '../ops/init-values/init-normal.ts';
import { initUniform } from '../ops/init-values/init-uniform.ts';
import { normalQuantiles } from '../ops/init-values/quantiles.ts';
import type { Kernel, Params } from '../ops/kernel.ts';
import { fnv1a } from './fnv1a.ts';
import type { ParameterSpec } from './model.ts';

/** One kernel that makes initial values: of `out`, and for normal ones of the table of quantiles. */
export interface InitDispatch {
  readonly kernel: Kernel;
  readonly params: Params;
}

const BLOCK = 2 ** 32;

/**
 * Makes the initial values of a part of a parameter: `count` elements from flat index `first`, at `offset` of the operand
 * `out`. They are a function of (seed, parameter name, flat index): any rank makes any part, on any device, with the same
 * bits. Uniform values are a counter-based integer times a power of two, then times the bound, each exact or rounded once;
 * normal values are an entry of a table of quantiles times the deviation. Nothing is added to a product, so no compiler can
 * fuse. More than one dispatch where the part reaches over a multiple of 2^32.
 */
export function initDispatches(
  { name, init }: ParameterSpec,
  seed: number,
  first: number,
  count: number,
  offset = 0,
): InitDispatch[] {
  if (init.kind === 'constant') return [{ kernel: fill, params: { n: count, offset, value: init.value } }];
  const stream = mix(seed ^ fnv1a(name));
  const [kernel, scale] =
    init.kind === 'uniform' ? [initUniform, { bound: init.bound }] : [initNormal, { deviation: init.std }];
  const dispatches: InitDispatch[] = [];
  for (let done = 0; done < count; ) {
    const at = first + done;
    const n = Math.min(count - done, BLOCK - (at % BLOCK));
    const key = streamKey(stream, Math.floor(at / BLOCK));
    dispatches.push({ kernel, params: { n, offset: offset + done, first: at % BLOCK, key, ...scale } });
    done += n;
  }
  return dispatches;
}

/** The values of a part of a parameter, made on the host. */
export function initialValues(
  spec: ParameterSpec,
  seed: number,
  first: number,
  count: number,
): Float32Array<ArrayBuffer> {
  const values = new Float32Array(count);
  for (const { kernel, params } of initDispatches(spec, seed, first, count))
    kernel.run([values, normalQuantiles()].slice(0, kernel.operands.length), params);
  return values;
}
