import { elementCount } from './dtype.ts';

/** Strides in elements of a row-major tensor, as torch writes them: a size of 0 counts as 1. */
export function contiguousStride(shape: readonly number[]): number[] {
  const stride = new Array<number>(shape.length);
  let step = 1;
  for (let dim = shape.length - 1; dim >= 0; dim--) {
    stride[dim] = step;
    step *= Math.max(1, shape[dim]);
  }
  return stride;
}

/** Elements from the first to the last one that a strided view touches, both included; 0 for an empty view. */
export function spanElements(shape: readonly number[], stride: readonly number[]): number {
  if (shape.includes(0)) return 0;
  return shape.reduce((span, size, dim) => span + (size - 1) * stride[dim], 1);
}

/** Whether the elements of a view lie one after the other in row-major order. Strides of sizes 0 and 1 do not matter. */
export function isContiguous(shape: readonly number[], stride: readonly number[]): boolean {
  const wanted = contiguousStride(shape);
  return shape.includes(0) || shape.every((size, dim) => size === 1 || stride[dim] === wanted[dim]);
}

/** A part of a strided view: where it begins in the storage and in the row-major copy, in elements. */
export interface StridedBlock {
  readonly shape: readonly number[];
  readonly from: number;
  readonly to: number;
}

/** Cuts a view into blocks that span at most `maxSpan` elements of the storage each, along the dimensions that lie far apart. */
export function* stridedBlocks(
  shape: readonly number[],
  stride: readonly number[],
  maxSpan: number,
  outStride: readonly number[] = contiguousStride(shape),
  from = 0,
  to = 0,
): Generator<StridedBlock> {
  const reach = shape.map((size, dim) => (size - 1) * stride[dim]);
  const widest = reach.indexOf(Math.max(...reach));
  if (spanElements(shape, stride) <= maxSpan || !(reach[widest] > 0)) {
    if (!shape.includes(0)) yield { shape, from, to };
    return;
  }
  const half = shape[widest] >> 1;
  const cut = (size: number, start: number) =>
    stridedBlocks(
      shape.with(widest, size),
      stride,
      maxSpan,
      outStride,
      from + start * stride[widest],
      to + start * outStride[widest],
    );
  yield* cut(half, 0);
  yield* cut(shape[widest] - half, half);
}

/**
 * Copies a block of a strided view, whose first element begins `data`, to where it belongs in the row-major copy `out` of the
 * whole, whose strides are `outStride`. Strides are in elements and not negative.
 */
export function gatherBlock(
  data: Uint8Array,
  { shape, to }: StridedBlock,
  stride: readonly number[],
  out: Uint8Array,
  outStride: readonly number[],
  elementBytes: number,
): void {
  const index = new Array<number>(shape.length).fill(0);
  let [source, target] = [0, to];
  for (let left = elementCount(shape); left > 0; left--) {
    for (let byte = 0; byte < elementBytes; byte++)
      out[target * elementBytes + byte] = data[source * elementBytes + byte];
    for (let dim = shape.length - 1; dim >= 0; dim--) {
      source += stride[dim];
      target += outStride[dim];
      if (++index[dim] < shape[dim]) break;
      source -= shape[dim] * stride[dim];
      target -= shape[dim] * outStride[dim];
      index[dim] = 0;
    }
  }
}
