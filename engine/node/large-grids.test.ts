import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { allCases } from '../ops/all-cases.ts';
import { attention } from '../ops/attention/attention.ts';
import { columnSum } from '../ops/column-sum/column-sum.ts';
import { crossEntropyPartial } from '../ops/cross-entropy/cross-entropy-partial.ts';
import { embedding } from '../ops/embedding/embedding.ts';
import { fill } from '../ops/fill/fill.ts';
import { foldGrid, MAX_WORKGROUPS_PER_DIMENSION, type Params, tiledVariant, WORKGROUP_THREADS } from '../ops/kernel.ts';
import { caseViews, type KernelCase } from '../ops/kernel-case.ts';
import { layerNorm } from '../ops/layer-norm/layer-norm.ts';
import { matmulNT } from '../ops/matmul/matmul.ts';
import { openAdapter } from './adapters.ts';
import { compile, dispatch, firstDifference, type Opened, openDevice } from './fixtures/run-kernel.ts';

/** More than 65,535 workgroups, which WebGPU refuses in one dimension: grids fold, and kernels find their place in them. */

describe('a plain grid', () => {
  it('has room for every thread, within the limit in both dimensions, with less than a row to spare', () => {
    const borders = [1, 64, 65, 65_535 * 64, 65_535 * 64 + 1, 2 * 65_535 * 64, 2 ** 32 - 1];
    fc.assert(
      fc.property(fc.oneof(fc.constantFrom(...borders), fc.integer({ min: 1, max: 2 ** 32 - 1 })), (threads) => {
        const [x, y] = foldGrid(threads);
        expect(Math.max(x, y)).toBeLessThanOrEqual(MAX_WORKGROUPS_PER_DIMENSION);
        const groups = Math.ceil(threads / WORKGROUP_THREADS);
        expect(x * y).toBeGreaterThanOrEqual(groups);
        expect(x * y - groups).toBeLessThan(y);
      }),
      { numRuns: 2000, seed: 1 },
    );
  });
});

/** The most that adapters bind to one operand. */
const MAX_BINDING_BYTES = 2 ** 31;

describe('a tiled grid', () => {
  const tiled = allCases.filter(({ kernel }) => kernel.tiled);

  it.each([...new Set(tiled.map(({ kernel }) => kernel))])(
    '$name: whatever variant runs, its grid is within the limit',
    (kernel) => {
      const own = tiled.filter((testCase) => testCase.kernel === kernel).map(({ params }) => params);
      const chosen = [undefined, ...(kernel.tiled!.special ?? []).map(({ name }) => name)];
      const grown = fc.constantFrom(...own).chain((params) => {
        const names = Object.keys(params).filter((key) => Number.isInteger(params[key]) && params[key] > 0);
        const growth = fc.record({ key: fc.constantFrom(...names), shift: fc.integer({ min: 1, max: 24 }) });
        return fc.array(growth, { maxLength: 3 }).map((growths): Params => {
          const larger = { ...params };
          for (const { key, shift } of growths) larger[key] *= 2 ** shift;
          return larger;
        });
      });
      fc.assert(
        fc.property(grown, (params) => {
          // What its operands could hold at all.
          if (kernel.cost(params).bytes > kernel.operands.length * MAX_BINDING_BYTES) return;
          for (const name of chosen) {
            const grid = tiledVariant(kernel, params, name)?.workgroups(params) ?? [];
            expect(
              grid.filter((n) => !(n <= MAX_WORKGROUPS_PER_DIMENSION)),
              `${name} ${JSON.stringify(params)}`,
            ).toEqual([]);
          }
        }),
        { numRuns: 300, seed: 1 },
      );
    },
  );
});

/** One more thread than one dimension has room for. */
const MANY = MAX_WORKGROUPS_PER_DIMENSION * WORKGROUP_THREADS + 1;
const dropout = { dropout: 0, maskKey0: 7, maskKey1: 2 };

/** A kernel of each shape: per element, per row, per column, per output of a product, per head, per token. */
const cases: readonly KernelCase[] = [
  {
    kernel: fill,
    name: 'a thread for each run of elements',
    params: { n: 16 * MANY, offset: 0, value: 1.5 },
    operandElements: [16 * MANY],
    tolerance: 0,
  },
  {
    kernel: layerNorm,
    name: 'a thread for each row',
    params: { R: MANY, D: 2, eps: 1e-5 },
    operandElements: [2 * MANY, 2, 2, 2 * MANY, 2 * MANY],
    tolerance: 1e-3,
  },
  {
    kernel: crossEntropyPartial,
    name: 'a thread for each part of a row',
    params: { R: MANY, V: 1, ld: 1, chunks: 1 },
    operandElements: [MANY, 2 * MANY],
    tolerance: 1e-6,
  },
  {
    kernel: columnSum,
    name: 'a thread for each column',
    params: { R: 1, C: MANY, xOffset: 0, ldx: MANY, outOffset: 0, accumulate: 0 },
    operandElements: [MANY, MANY],
    tolerance: 0,
  },
  {
    kernel: matmulNT,
    name: 'a thread for each block of a product',
    params: {
      M: 1,
      N: 8 * MANY,
      K: 1,
      aOffset: 0,
      lda: 1,
      bOffset: 0,
      ldb: 1,
      cOffset: 0,
      ldc: 8 * MANY,
      accumulate: 0,
    },
    operandElements: [1, 8 * MANY, 8 * MANY],
    tolerance: 1e-6,
  },
  {
    kernel: attention,
    name: 'a thread for each head',
    params: {
      B: 1,
      T: 1,
      H: MANY,
      HD: 1,
      groupSize: 1,
      stride: 3 * MANY,
      qOffset: 0,
      kOffset: MANY,
      vOffset: 2 * MANY,
      causal: 0,
      ...dropout,
    },
    operandElements: [3 * MANY, 16, MANY, MANY],
    tolerance: 1e-5,
  },
  {
    kernel: embedding,
    name: 'a thread for each element of a token',
    params: { R: Math.ceil(MANY / 32), D: 32, scale: 2, T: 1 },
    operandElements: [Math.ceil(MANY / 32), 32 * 5, 32, 32 * Math.ceil(MANY / 32)],
    fill: (operand, view) => {
      if (operand === 0) for (let i = 0; i < view.length; i++) view[i] = (i * i) % 5;
    },
    tolerance: 1e-6,
  },
];

describe('on a software GPU', () => {
  let opened: Opened;
  beforeAll(async () => {
    opened = await openDevice((await openAdapter('software', { validate: true })).adapter);
  });
  afterAll(() => opened.device.destroy());

  it.each(cases)('$kernel.name: $name', async (testCase) => {
    const { kernel, params } = testCase;
    expect(foldGrid(kernel.threads(params))[1]).toBeGreaterThan(1);
    const got = await dispatch(
      opened.device,
      await compile(opened.device, kernel, params, false),
      testCase,
      caseViews(testCase, 1),
      false,
    );
    const want = caseViews(testCase, 1);
    kernel.run(want, params);
    expect(opened.errors.splice(0)).toEqual([]);
    expect(firstDifference(testCase, got, want)).toBeNull();
  });
});
