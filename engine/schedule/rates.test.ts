import { describe, expect, it } from 'vitest';
import { ratesOf } from './fixtures/rates-of.ts';
import { builtInProfiles } from './profile.ts';
import { AdapterRates, copyRatesOf, kernelClass } from './rates.ts';

const one = {
  processes: 1,
  uploadBytesPerSecond: 60e9,
  hostCopyBytesPerSecond: 50e9,
  downloadBytesPerSecond: 40e9,
  placeBytesPerSecond: 150e9,
  pieceSeconds: 1e-5,
  roundTripSeconds: 1e-4,
};
const three = {
  processes: 3,
  uploadBytesPerSecond: 30e9,
  hostCopyBytesPerSecond: 20e9,
  downloadBytesPerSecond: 40e9,
  placeBytesPerSecond: 50e9,
  pieceSeconds: 2e-5,
  roundTripSeconds: 5e-4,
};

describe('the rates of copies by several processes', () => {
  it('are those that were measured of so many', () => {
    expect(copyRatesOf([one, three], 1)).toEqual(one);
    expect(copyRatesOf([one, three], 3)).toEqual(three);
  });

  it('share the machine’s total between two numbers, and beyond the last', () => {
    expect(copyRatesOf([one, three], 2)).toEqual({
      ...one,
      processes: 2,
      uploadBytesPerSecond: (60e9 + 90e9) / 2 / 2,
      hostCopyBytesPerSecond: (50e9 + 60e9) / 2 / 2,
      downloadBytesPerSecond: (40e9 + 120e9) / 2 / 2,
      placeBytesPerSecond: 150e9 / 2,
    });
    expect(copyRatesOf([one, three], 6)).toMatchObject({ uploadBytesPerSecond: 15e9, pieceSeconds: 2e-5 });
    expect(copyRatesOf([one], 4)).toMatchObject({
      processes: 4,
      hostCopyBytesPerSecond: 12.5e9,
      roundTripSeconds: 1e-4,
    });
  });

  it('begin with one process', () => {
    const rates = ratesOf(builtInProfiles.h200);
    expect(AdapterRates.safeParse(rates).success).toBe(true);
    for (const copies of [[], [three]]) expect(AdapterRates.safeParse({ ...rates, copies }).success).toBe(false);
  });
});

it('tells kernels on tensor cores from others of their kind', () => {
  const classOf = (name: string, params = { M: 512, K: 512 }) => kernelClass({ name }, params);
  expect(['attention', 'attention-grad-q', 'attention-grad-kv, half dout, qkv'].map((name) => classOf(name))).toEqual([
    'attention',
    'attentionGrad',
    'attentionGrad',
  ]);
  expect(
    ['attention, half qkv, tensor cores, to half out', 'attention-grad-q, tensor cores'].map((name) => classOf(name)),
  ).toEqual(['attentionCores', 'attentionCores']);
  expect([classOf('matmul-nt'), classOf('matmul-nt, half a, b, tensor cores')]).toEqual(['matmul', 'tensorCores']);
  expect(classOf('matmul-nt', { M: 35, K: 512 })).toBe('fewRows');
});
