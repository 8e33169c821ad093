import fc from 'fast-check';
import { expect, test } from 'vitest';
import { FreeRanges } from './free-ranges.ts';

test('taking splits a free range, giving joins it with its neighbours', () => {
  const free = new FreeRanges(100);
  expect(free.take(10, 20)).toEqual({ gone: [100], made: [10, 70] });
  expect(free.take(0, 10)).toEqual({ gone: [10], made: [] });
  expect(free.take(30, 70)).toEqual({ gone: [70], made: [] });
  expect(free.sizes()).toEqual([]);
  expect(free.give(0, 10)).toEqual({ gone: [], made: [10] });
  expect(free.give(30, 70)).toEqual({ gone: [], made: [70] });
  expect(free.give(10, 20)).toEqual({ gone: [10, 70], made: [100] });
});

test('taking what is taken is refused', () => {
  const free = new FreeRanges(100);
  free.take(10, 20);
  expect(() => free.take(29, 2)).toThrow('taken twice');
  expect(() => free.take(99, 2)).toThrow('taken twice');
});

test('free ranges are the runs of free bytes, whatever is taken and given', () => {
  const change = fc.record({ from: fc.nat(31), bytes: fc.integer({ min: 1, max: 8 }) });
  fc.assert(
    fc.property(fc.array(change, { maxLength: 40 }), (changes) => {
      const free = new FreeRanges(32);
      const bytes = new Array<boolean>(32).fill(true);
      const taken: typeof changes = [];
      let ranges = [32];
      for (const c of changes) {
        const own = taken.findIndex((t) => t.from === c.from);
        const isFree = c.from + c.bytes <= 32 && bytes.slice(c.from, c.from + c.bytes).every(Boolean);
        if (own < 0 && !isFree) continue;
        const { from, bytes: size } = own < 0 ? c : taken.splice(own, 1)[0];
        if (own < 0) taken.push(c);
        const { gone, made } = own < 0 ? free.take(from, size) : free.give(from, size);
        bytes.fill(own >= 0, from, from + size);
        for (const g of gone) ranges.splice(ranges.indexOf(g), 1);
        ranges = [...ranges, ...made];
        const runs = bytes
          .map((b) => (b ? '1' : '0'))
          .join('')
          .split('0')
          .map((run) => run.length)
          .filter((length) => length > 0);
        expect(free.sizes()).toEqual(runs);
        expect(ranges.sort()).toEqual(runs.sort());
      }
    }),
  );
});
