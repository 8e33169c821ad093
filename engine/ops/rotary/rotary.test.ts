import { expect, test } from 'vitest';
import { seededRandom } from '../kernel-case.ts';
import { rotary } from './rotary.ts';
import { rotaryTable } from './rotate.ts';

const [T, H, HD, theta] = [7, 3, 4, 100];
const stride = H * HD + 5;
const R = 2 * T;
const table = rotaryTable(T, HD, theta);
const random = seededRandom(2);
const x = Float32Array.from({ length: R * stride }, () => random() * 2 - 1);

test('turns each pair (j, j + HD/2) of the first heads by position·θ^(−2j/HD)', () => {
  const turned = x.slice();
  rotary.run([turned, table], { R, T, H, HD, stride, back: 0 });
  for (let r = 0; r < R; r++)
    for (let c = 0; c < stride; c++) {
      const at = r * stride + c;
      if (c >= H * HD) {
        expect(turned[at]).toBe(x[at]);
        continue;
      }
      const j = c % (HD / 2);
      const angle = (r % T) * theta ** ((-2 * j) / HD);
      const isFirst = c % HD < HD / 2;
      const [own, other] = [x[at], isFirst ? -x[at + HD / 2] : x[at - HD / 2]];
      expect(turned[at]).toBeCloseTo(own * Math.cos(angle) + other * Math.sin(angle), 5);
    }
});

test('the gradient is the turn back: its transpose', () => {
  const there = x.slice();
  rotary.run([there, table], { R, T, H, HD, stride, back: 0 });
  rotary.run([there, table], { R, T, H, HD, stride, back: 1 });
  there.forEach((value, i) => {
    expect(value).toBeCloseTo(x[i], 6);
  });
});
