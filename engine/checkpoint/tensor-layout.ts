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

/** Copies a strided view, whose first element begins `data`, into row-major order. Strides are in elements and not negative. */
export function gatherStrided(
  data: Uint8Array,
  shape: readonly number[],
  stride: readonly number[],
  elementBytes: number,
): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(elementCount(shape) * elementBytes);
  const index = new Array<number>(shape.length).fill(0);
  let from = 0;
  for (let to = 0; to < out.length; to += elementBytes) {
    for (let byte = 0; byte < elementBytes; byte++) out[to + byte] = data[from * elementBytes + byte];
    for (let dim = shape.length - 1; dim >= 0; dim--) {
      from += stride[dim];
      if (++index[dim] < shape[dim]) break;
      from -= shape[dim] * stride[dim];
      index[dim] = 0;
    }
  }
  return out;
}
