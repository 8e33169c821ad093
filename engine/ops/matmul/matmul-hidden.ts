import { dropoutFactor, dropoutMask, dropoutParams, dropoutWgsl } from '../dropout/dropout-mask.ts';
import type { Cost, Kernel, OperandSpec, ParamSpec, Params, TiledVariant } from '../kernel.ts';
import { matmulNN, matmulNTBias } from './matmul.ts';
import { fewRowsVariants } from './matmul-few-rows.ts';
import { storeThroughWgsl } from './matmul-store.ts';
import { matmulWgsl } from './matmul-wgsl.ts';

/** Products into and out of a hidden layer of few rows, with what its activation function does as they are stored. */

const PARAMS = ['M', 'N', 'K', 'aOffset', 'lda', 'bOffset', 'ldb', 'cOffset', 'ldc'].map(
  (name): ParamSpec => ({ name, type: 'u32' }),
);
const read = (name: string): OperandSpec => ({ name, dtype: 'f32', access: 'read' });
const C: OperandSpec = { name: 'c', dtype: 'f32', access: 'read_write' };

const withMask = ({ flops, bytes }: Cost, { M, N }: Params, perElement: number): Cost => ({
  flops: flops + 2 * M * N,
  bytes: bytes + perElement * M * N,
});

function tiled(layout: 'nt' | 'nn', store: string): TiledVariant {
  const special = fewRowsVariants(layout, false, store);
  return { ...special[special.length - 1], special };
}

const droppedStore = `${dropoutWgsl}${storeThroughWgsl(`value += bias[p.biasOffset + n];
    if (value < 0.0) { value = 0.0; }
    value *= dropout_factor(dropout_mask(), at);`)}`;

/** C = dropout(max(0, A·Bᵀ + bias)), the mask by the place in c: `matmul-nt-bias` with relu, and dropout in place. */
export const matmulNTReluDrop: Kernel = {
  name: 'matmul-nt-relu-drop',
  operands: [read('a'), read('b'), C, read('bias'), read('control')],
  params: [...PARAMS, { name: 'biasOffset', type: 'u32' }, ...dropoutParams],
  constants: [],
  threads: matmulNTBias.threads,
  cost: (params) => withMask(matmulNTBias.cost({ ...params, accumulate: 0 }), params, 0),
  shapeClass: matmulNTBias.shapeClass,
  run([a, b, c, bias, control], params) {
    matmulNTBias.run([a, b, c, bias], { ...params, accumulate: 0, relu: 1 });
    const { M, N, cOffset, ldc } = params;
    const mask = dropoutMask(control, params);
    for (let m = 0; m < M; m++)
      for (let n = 0; n < N; n++) {
        const at = cOffset + m * ldc + n;
        c[at] *= dropoutFactor(mask, at);
      }
  },
  wgsl: matmulWgsl('nt', false, false, droppedStore),
  tiled: tiled('nt', droppedStore),
};

const gatedStore = storeThroughWgsl('value = select(value * p.scale, 0.0, hidden[at] <= 0.0);');

/**
 * C = A·B · scale where `hidden`, laid out as c, is above 0 (or not a number), and 0 elsewhere: `matmul-nn` and `relu-grad`,
 * the gradient through a hidden layer's activation function and dropout.
 */
export const matmulNNGated: Kernel = {
  name: 'matmul-nn-gated',
  operands: [read('a'), read('b'), C, read('hidden')],
  params: [...PARAMS, { name: 'scale', type: 'f32' }],
  constants: [],
  threads: matmulNN.threads,
  cost: (params) => withMask(matmulNN.cost({ ...params, accumulate: 0 }), params, 4),
  shapeClass: matmulNN.shapeClass,
  run([a, b, c, hidden], params) {
    matmulNN.run([a, b, c], { ...params, accumulate: 0 });
    const { M, N, cOffset, ldc, scale } = params;
    for (let m = 0; m < M; m++)
      for (let n = 0; n < N; n++) {
        const at = cOffset + m * ldc + n;
        c[at] = hidden[at] <= 0 ? 0 : c[at] * scale;
      }
  },
  wgsl: matmulWgsl('nn', false, false, gatedStore),
  tiled: tiled('nn', gatedStore),
};
