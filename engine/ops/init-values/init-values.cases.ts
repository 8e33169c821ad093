import type { Kernel, Params } from '../kernel.ts';
import type { KernelCase } from '../kernel-case.ts';
import { initNormal } from './init-normal.ts';
import { initUniform } from './init-uniform.ts';
import { normalQuantiles, QUANTILES } from './quantiles.ts';

/** Equal to the bit: initial values may not depend on where they are made. */
function initCase(kernel: Kernel, name: string, n: number, position: Params): KernelCase {
  const params = { n, offset: 3, bound: 0.088_388_347_648, deviation: 0.02, ...position };
  return {
    kernel,
    name: `${name}: ${n}`,
    params: Object.fromEntries(kernel.params.map((p) => [p.name, params[p.name as keyof typeof params]])),
    operandElements: kernel === initNormal ? [n + 5, QUANTILES] : [n + 5],
    fill: (operand, view) => operand === 1 && view.set(normalQuantiles()),
    tolerance: 0,
  };
}

export const cases: KernelCase[] = [initUniform, initNormal].flatMap((kernel) => [
  initCase(kernel, 'from the start', 10_007, { first: 0, key: 0x9e3779b9 }),
  initCase(kernel, 'the last below 2^32', 1031, { first: 2 ** 32 - 1031, key: 0xffffffff }),
  initCase(kernel, 'nothing', 0, { first: 5, key: 1 }),
]);
