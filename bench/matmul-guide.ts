import { type Call, Graph } from '../engine/ops/graph.ts';
import { type Cost, type Kernel, tiledVariant } from '../engine/ops/kernel.ts';
import { matmulNN, matmulNTBias, matmulTNSums } from '../engine/ops/matmul/matmul.ts';
import { matmulLinearGrads } from '../engine/ops/matmul/matmul-linear-grads.ts';
import { adapterProfile } from '../engine/runtime/device.ts';
import { withSplitSums } from '../engine/schedule/split-sums.ts';
import type { UnitProgram } from '../engine/schedule/unit-program.ts';
import type { BenchDevice } from './bench-device.ts';
import { floorMs, type Rates, ratioTo } from './floor.ts';
import {
  GUIDE_LAYERS,
  GUIDE_SHAPES,
  leastCost,
  leastGradientsCost,
  type ProductShape,
  productParams,
  shapeName,
  shrunk,
  shrunkExtent,
} from './matmul-shapes.ts';
import { timesOf } from './measure.ts';
import type { Layout } from './product-error.ts';
import { askBeside, type TorchParts } from './torch-parts.ts';

/** Weights, and results, that take turns, so that none is found in the cache: 16 MB each, 60 MB of cache. */
const COPIES = 8;
const CHAIN = 64;
const ROUNDS = 7;
/** The guide's tokens. */
const ROWS = 35;

/** Forward with its bias, the input's gradient, the weight's with the bias's. */
const kernelOf: Readonly<Record<Layout, Kernel>> = { nt: matmulNTBias, nn: matmulNN, tn: matmulTNSums };
const PLACE = { module: '', phase: 'forward', microBatch: 0 } as const;
const WIDTHS = [18, 36, 8, 9, 6, 9, 6];
const HEADER = ['product', 'kernels', 'us', 'floor us', 'of it', 'torch us', 'ratio'];

interface GuideRow {
  readonly name: string;
  readonly calls: readonly Call[];
  readonly cost: Cost;
  readonly question: { readonly ask: string; readonly [more: string]: unknown };
}

/**
 * The products of few rows of the guide's model, and both gradients of a layer as a step has them, in one dispatch, beside
 * torch's: medians of seven rounds in turns. Floor: the longer of the arithmetic and of reading the weight once (or writing its
 * gradient; of both gradients both).
 */
export async function guideTable(device: BenchDevice, rates: Rates, torch: TorchParts | null): Promise<void> {
  const [chain, copies] = device.software ? [1, 1] : [CHAIN, COPIES];
  console.log(line(HEADER));
  for (const { name, calls, cost, question } of [...productRows(device), ...gradientRows(device)]) {
    const { encode, destroy } = await device.readyCalls(calls, copies);
    await device.warm(() => device.msOf(encode, chain));
    const [own, theirs]: [number[], number[]] = [[], []];
    for (let round = 0; round < ROUNDS; round++) {
      theirs.push(...((await askBeside(torch, { ...question, copies: COPIES, chain }))?.ms ?? []));
      // The clock has fallen while torch was asked.
      await device.msOf(encode, chain);
      own.push(await device.msOf(encode, chain));
    }
    destroy();
    await torch?.forget();
    const kernels = calls.map(({ kernel, params }) => variantName(kernel, params, device.software));
    console.log(guideLine(name, kernels, own, floorMs(cost, rates), theirs));
  }
}

function productRows(device: BenchDevice): GuideRow[] {
  return GUIDE_SHAPES.map((full) => {
    const shape = device.software ? shrunk(full) : full;
    const [layout, M, N, K] = shape;
    const question = { ask: 'matmul', layout, M, N, K, dtype: 'float32', bias: layout !== 'nn' };
    return { name: shapeName(shape), calls: productCalls(device, shape), cost: leastCost(shape), question };
  });
}

function gradientRows({ software }: BenchDevice): GuideRow[] {
  return GUIDE_LAYERS.map((layer) => {
    const [N, K] = software ? layer.map(shrunkExtent) : layer;
    return {
      name: `both ${ROWS}x${N}x${K}`,
      calls: [gradientsCall(N, K)],
      cost: leastGradientsCost(ROWS, N, K),
      question: { ask: 'gradients', M: ROWS, N, K },
    };
  });
}

/** A row: medians, the floor and its part of ours, torch's and ours to it; without torch nothing there. */
export function guideLine(
  name: string,
  kernels: readonly string[],
  ownMs: readonly number[],
  floorMs: number,
  theirMs: readonly number[],
): string {
  const us = (ms: number) => (1000 * ms).toFixed(1);
  const own = timesOf(ownMs).medianMs;
  const theirs = theirMs.length ? timesOf(theirMs).medianMs : null;
  const cells = [us(own), us(floorMs), `${((100 * floorMs) / own).toFixed(0)} %`];
  return line([name, kernels.join(', '), ...cells, theirs === null ? '' : us(theirs), ratioTo(theirs, own)]);
}

function line(cells: readonly string[]): string {
  return cells
    .map((cell, i) => (i < 2 ? cell.padEnd(WIDTHS[i]) : cell.padStart(WIDTHS[i])))
    .join(' ')
    .trimEnd();
}

function variantName(kernel: Kernel, params: Call['params'], software: boolean): string {
  return (software ? undefined : tiledVariant(kernel, params)?.name) ?? kernel.name;
}

/** One product as the engine calls it, its sums split where it splits them. */
function productCalls({ adapter, entry }: BenchDevice, shape: ProductShape): readonly Call[] {
  const [layout, M, N, K] = shape;
  const g = new Graph();
  const { lda, ldb, ldc } = productParams(shape);
  const params = { ...productParams(shape), biasOffset: 0, relu: 0, sumsOffset: 0, sumsAccumulate: 0 };
  const operands = [
    g.workspace('a', [layout === 'tn' ? K : M, lda]),
    g.workspace('b', [layout === 'nt' ? N : K, ldb]),
    g.workspace('c', [M, ldc]),
    ...(layout === 'nt' ? [g.workspace('bias', [N])] : []),
    ...(layout === 'tn' ? [g.workspace('sums', [M])] : []),
  ];
  const call: Call = { kernel: kernelOf[layout], operands, params, ...PLACE };
  const program = { visits: [{ calls: [call] }], values: operands } as unknown as UnitProgram;
  return withSplitSums(program, adapterProfile(adapter, entry.name, entry.software)).visits[0].calls;
}

function gradientsCall(N: number, K: number): Call {
  const g = new Graph();
  const shapes = { dy: [ROWS, N], w: [N, K], x: [ROWS, K], dx: [ROWS, K], dw: [N, K], sums: [N] };
  const places = { dyOffset: 0, ldy: N, wOffset: 0, sumsOffset: 0 };
  const added = { xAccumulate: 0, wAccumulate: 0, sumsAccumulate: 0, gated: 0, scale: 1 };
  return {
    kernel: matmulLinearGrads,
    operands: Object.entries(shapes).map(([name, shape]) => g.workspace(name, shape)),
    params: { M: ROWS, N, K, ...places, ...added },
    ...PLACE,
  };
}
