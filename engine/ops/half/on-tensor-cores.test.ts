import { describe, expect, it } from 'vitest';
import type { Kernel, Params } from '../kernel.ts';
import { tiledVariant } from '../kernel.ts';
import { matmulNN, matmulNT, matmulNTBias, matmulTN, matmulTNSums } from '../matmul/matmul.ts';
import { packHalves, roundToHalf } from './half.ts';
import { onTensorCores } from './on-tensor-cores.ts';
import { roundHalf } from './round-half.ts';

const params = (M: number, N: number, K: number, more: Params = {}): Params => ({
  M,
  N,
  K,
  aOffset: 0,
  lda: K,
  bOffset: 0,
  ldb: K,
  cOffset: 0,
  ldc: N,
  accumulate: 0,
  ...more,
});

describe('a matmul on tensor cores', () => {
  it('rounds float32 factors to halves, and nothing else', () => {
    const size = params(128, 128, 128, { ldb: 128 });
    const kernel = onTensorCores(matmulNN, ['b'], size)!;
    const a = new Float32Array(128 * 128);
    const b = new Float32Array(128 * 128);
    const third = 1 / 3;
    a[0] = third;
    b[0] = third;
    b[1] = 1e5;
    const c = new Float32Array(128 * 128);
    kernel.run([a, packHalves(b), c], size);
    expect(c[0]).toBe(Math.fround(roundToHalf(third) ** 2));
    expect(c[1]).toBe(Number.POSITIVE_INFINITY);
    expect(a[0]).toBe(Math.fround(third));
  });

  it('is taken for products of many rows, columns and terms whose operands are aligned', () => {
    const taken = (kernel: Kernel, halves: readonly string[], p: Params) => onTensorCores(kernel, halves, p) !== null;
    expect(taken(matmulNT, ['a', 'b'], params(4096, 1024, 1024))).toBe(true);
    expect(taken(matmulNT, ['a', 'b'], params(35, 1024, 1024))).toBe(false);
    expect(taken(matmulNT, ['a', 'b'], params(4096, 1024, 35))).toBe(false);
    expect(taken(matmulNT, ['a', 'b'], params(4096, 1024, 1024, { lda: 1028 }))).toBe(false);
    expect(taken(matmulNT, ['a', 'b'], params(4096, 1024, 1024, { bOffset: 4 }))).toBe(false);
    // The rows of a vocabulary of 33278: sums over it read past its last term, into the padding of float32 rows.
    const wide = params(4096, 1024, 33_278, { lda: 33_280, ldb: 1024 });
    expect(taken(matmulNN, ['b'], wide)).toBe(true);
    expect(taken(matmulNN, ['a', 'b'], wide)).toBe(false);
    expect(taken(matmulNN, ['b'], { ...wide, lda: 33_278 })).toBe(false);
    expect(taken(matmulTN, ['b'], params(33_278, 1024, 4096, { lda: 33_280, ldb: 1024 }))).toBe(true);
  });

  it('is no other kernel, and none whose bias is float32', () => {
    const large = params(4096, 1024, 1024, { biasOffset: 0, relu: 0 });
    expect(onTensorCores(roundHalf, [], { n: 1 })).toBeNull();
    expect(onTensorCores(matmulTNSums, ['b'], large)).toBeNull();
    expect(onTensorCores(matmulNTBias, ['a', 'b'], large)).toBeNull();
    expect(onTensorCores(matmulNTBias, ['a', 'b', 'bias'], large)).toBe(
      onTensorCores(matmulNTBias, ['bias', 'b', 'a'], large),
    );
  });

  it('has smaller tiles where there would be fewer workgroups than an H200 has multiprocessors', () => {
    const tile = (M: number, N: number) => {
      const p = params(M, N, 1024);
      const [x, y] = tiledVariant(onTensorCores(matmulNT, ['a', 'b'], p)!, p)!.workgroups(p);
      return x * y;
    };
    for (const [M, N] of [
      [4096, 4096],
      [4096, 1024],
      [1024, 1024],
    ])
      expect(tile(M, N), `${M}x${N}`).toBeGreaterThan(110);
  });
});
