import { describe, expect, it } from 'vitest';
import { matmulNT } from '../matmul/matmul.ts';
import { EDGES } from './half.cases.ts';
import { halfBits, packHalves, roundToHalf, unpackHalves } from './half.ts';
import { withHalves } from './with-halves.ts';

describe('halves', () => {
  it('every half is its own nearest', () => {
    const words = Uint32Array.from({ length: 32_768 }, (_, i) => (2 * i) | ((2 * i + 1) << 16));
    const values = unpackHalves(words);
    values.forEach((value, half) => {
      if (Number.isNaN(value)) expect(halfBits(value) & 0x7fff).toBe(0x7e00);
      else expect(halfBits(value), `${value}`).toBe(half);
    });
    expect([values[1], values[0x3c00], values[0x7bff], values[0xfc00]]).toEqual([
      2 ** -24,
      1,
      65504,
      Number.NEGATIVE_INFINITY,
    ]);
  });

  it('rounds to the nearest, ties to the even one, and past 65520 to infinity', () => {
    const table = unpackHalves(Uint32Array.from({ length: 0x7c00 / 2 }, (_, i) => (2 * i) | ((2 * i + 1) << 16)));
    const nearest = (x: number) => {
      const m = Math.abs(Math.fround(x));
      if (m >= 65520) return Math.sign(x) * Number.POSITIVE_INFINITY;
      let best = 0;
      for (let half = 1; half < table.length; half++) {
        const [d, known] = [Math.abs(table[half] - m), Math.abs(table[best] - m)];
        if (d < known || (d === known && half % 2 === 0)) best = half;
      }
      return Math.sign(x) * table[best];
    };
    for (const x of EDGES) expect(roundToHalf(x) + 0, `${x}`).toBe(nearest(x) + 0);
    expect(roundToHalf(Number.NaN)).toBeNaN();
    expect(roundToHalf(Number.POSITIVE_INFINITY)).toBe(Number.POSITIVE_INFINITY);
  });

  it('packs two to a word, an odd last one with 0', () => {
    expect([...packHalves(Float32Array.of(1, -2, 0.5))]).toEqual([0xc0003c00, 0x3800]);
    expect([...unpackHalves(Uint32Array.of(0xc0003c00, 0x3800), 3)]).toEqual([1, -2, 0.5]);
  });
});

describe('a kernel over halves', () => {
  it('is made once, and refuses an operand that it writes', () => {
    expect(withHalves(matmulNT, ['b', 'a'])).toBe(withHalves(matmulNT, ['a', 'b']));
    expect(withHalves(matmulNT, [])).toBe(matmulNT);
    expect(() => withHalves(matmulNT, ['c'])).toThrow(/c is not an operand/);
  });

  it('unpacks wherever the text reads the operand, and nowhere else', () => {
    const { wgsl, tiled } = withHalves(matmulNT, ['a', 'b']);
    for (const text of [wgsl, tiled!.wgsl, ...(tiled!.special ?? []).map((v) => v.wgsl)]) {
      const bodies = text.split('\n').filter((line) => !line.startsWith('fn half_'));
      expect(bodies.join('\n')).not.toMatch(/(?<![\w.])[ab]\[/);
      expect(text).toMatch(/half_a\(/);
    }
  });
});
