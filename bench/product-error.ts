import { unpackHalves } from '../engine/ops/half/half.ts';
import { seededRandom } from '../engine/ops/kernel-case.ts';
import { matmulNN, matmulNT, matmulTN } from '../engine/ops/matmul/matmul.ts';
import type { OpenDevice } from '../engine/runtime/device.ts';

/** Which of a and b a product reads transposed. */
export type Layout = 'nt' | 'nn' | 'tn';
export const LAYOUTS: readonly Layout[] = ['nt', 'nn', 'tn'];
export const kernelOf = { nt: matmulNT, nn: matmulNN, tn: matmulTN } as const;

const SAMPLES = 64;
/** Of float32 sums of products of values in [-1, 1), by `productError`. */
const MOST_ERROR = 1e-4;
/** And where results are rounded to halves. */
const MOST_ERROR_OF_HALVES = 1e-3;

export interface Product {
  readonly layout: Layout;
  /** M, N, K, lda, ldb and ldc, as the kernel has them; offsets are 0. */
  readonly params: Readonly<Record<string, number>>;
  readonly a: Float32Array;
  readonly b: Float32Array;
}

/**
 * The largest difference of c, float32 or halves in `buffer`, from sums in float64, relative to sqrt(K), over 64 elements, the last
 * one among them; NaN if one of them is.
 */
export async function productError(
  { device, guard }: Pick<OpenDevice, 'device' | 'guard'>,
  { layout, params, a, b }: Product,
  buffer: GPUBuffer,
  stored: 'f32' | 'f16' = 'f32',
): Promise<number> {
  const { M, N, K, lda, ldb, ldc } = params;
  const readback = device.createBuffer({ size: buffer.size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, readback, 0, buffer.size);
  device.queue.submit([encoder.finish()]);
  await guard(readback.mapAsync(GPUMapMode.READ));
  const range = readback.getMappedRange();
  const c = stored === 'f32' ? new Float32Array(range) : unpackHalves(new Uint32Array(range));
  const random = seededRandom(2);
  const errors = Array.from({ length: SAMPLES }, (_, i) => {
    const [m, n] = i === 0 ? [M - 1, N - 1] : [Math.floor(random() * M), Math.floor(random() * N)];
    let sum = 0;
    for (let k = 0; k < K; k++)
      sum += a[layout === 'tn' ? k * lda + m : m * lda + k] * b[layout === 'nt' ? n * ldb + k : k * ldb + n];
    return Math.abs(sum - c[m * ldc + n]) / Math.sqrt(K);
  });
  readback.destroy();
  return Math.max(...errors);
}

/** As a line of a benchmark says it. */
export function errorWords(error: number, stored: 'f32' | 'f16' = 'f32'): string {
  const most = stored === 'f32' ? MOST_ERROR : MOST_ERROR_OF_HALVES;
  return `error ${error.toExponential(1)}${error < most ? '' : ' WRONG'}`;
}
