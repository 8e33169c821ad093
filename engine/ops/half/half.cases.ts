import { embedding } from '../embedding/embedding.ts';
import { tiledVariant } from '../kernel.ts';
import type { KernelCase } from '../kernel-case.ts';
import { layerNorm } from '../layer-norm/layer-norm.ts';
import { cases as matmulCases } from '../matmul/matmul.cases.ts';
import { matmulNT, matmulTN } from '../matmul/matmul.ts';
import { packHalf } from './pack-half.ts';
import { roundHalf } from './round-half.ts';
import { unpackHalf } from './unpack-half.ts';
import { withHalves } from './with-halves.ts';

/** Numbers around every edge of the halves: the smallest, the largest, ties both ways, and what lies beyond. */
export const EDGES = [
  0,
  -0,
  1,
  -1 / 3,
  2 ** -24,
  2 ** -25,
  -(2 ** -25) * (1 + 2 ** -20),
  3 * 2 ** -25,
  2 ** -14,
  2 ** -14 - 2 ** -25,
  2 ** -14 - 2 ** -26,
  1 + 2 ** -11,
  1 + 3 * 2 ** -11,
  1 + 2 ** -11 + 2 ** -23,
  65504,
  65519.99,
  65520,
  -65520,
  1e9,
  -1e30,
  2 ** -60,
];

const edges: NonNullable<KernelCase['fill']> = (operand, view, random) => {
  for (let i = 0; i < view.length; i++)
    view[i] = operand > 0 ? 0 : (EDGES[i] ?? (random() * 2 - 1) * 2 ** Math.floor(random() * 45 - 27));
};

const sizes = [1, 2, 21, 500, 1111];

/** One case of each variant of two layouts, both operands halves. */
const matmuls = [matmulNT, matmulTN].flatMap((kernel) => {
  const own = matmulCases.filter((c) => c.kernel === kernel && c.params.K > 0);
  const variant = ({ params }: KernelCase) => tiledVariant(kernel, params)?.name;
  const one = own.filter((c, i) => own.findIndex((other) => variant(other) === variant(c)) === i);
  return one.map((c) => ({ ...c, kernel: withHalves(kernel, ['a', 'b']) }));
});

export const cases: KernelCase[] = [
  ...sizes.flatMap((n): KernelCase[] => {
    const common = { name: `${n}`, tolerance: 0, fill: edges };
    return [
      { ...common, kernel: packHalf, params: { n, xOffset: 0 }, operandElements: [n, n] },
      { ...common, kernel: packHalf, name: `${n}, a part`, params: { n, xOffset: 3 }, operandElements: [n + 3, n] },
      { ...common, kernel: unpackHalf, params: { n }, operandElements: [n, n] },
      { ...common, kernel: roundHalf, params: { n }, operandElements: [n] },
    ];
  }),
  ...matmuls,
  {
    kernel: withHalves(embedding, ['weight']),
    name: 'a table of halves',
    params: { R: 5, D: 7, scale: 2, T: 1 },
    operandElements: [5, 9 * 7, 7, 35],
    fill: (operand, view) => {
      if (operand === 0) view.set([8, 0, 3, 3, 1]);
    },
    tolerance: 0,
  },
  {
    kernel: withHalves(layerNorm, ['x', 'weight', 'bias']),
    name: 'all of it halves',
    params: { R: 3, D: 37, eps: 1e-5 },
    operandElements: [111, 37, 37, 111, 6],
    tolerance: 1e-5,
  },
];
