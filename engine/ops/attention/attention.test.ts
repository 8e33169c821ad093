import { describe, expect, test } from 'vitest';
import { CONTROL_ELEMENTS } from '../control.ts';
import { setStep } from '../dropout/dropout.cases.ts';
import { dropoutMask } from '../dropout/dropout-mask.ts';
import { pairFactor, pairMask } from '../dropout/pair-mask.ts';
import { seededRandom } from '../kernel-case.ts';
import { type AttentionShape, attentionParamsOf, attentionShapes } from './attention.cases.ts';
import { attention } from './attention.ts';
import { attentionGradKV } from './attention-grad-kv.ts';
import { attentionGradQ } from './attention-grad-q.ts';

const control = new Float32Array(CONTROL_ELEMENTS);
setStep(control, 11);

/** Attention by its definition, in float64: a matrix of probabilities, masked and dropped, times v. */
function expected(qkv: ArrayLike<number>, shape: AttentionShape): { out: Float64Array; lse: Float64Array } {
  const { B, T, H, HD, causal } = shape;
  const params = attentionParamsOf(shape);
  const mask = dropoutMask(control, params);
  const out = new Float64Array(B * T * H * HD);
  const lse = new Float64Array(B * H * T);
  const at = (b: number, t: number, h: number, d: number, offset: number) =>
    qkv[(b * T + t) * params.stride + offset + h * HD + d];
  const columns = Array.from({ length: HD }, (_, d) => d);
  for (let b = 0; b < B; b++) {
    for (let h = 0; h < H; h++) {
      const kv = Math.floor(h / params.groupSize);
      const pairs = pairMask(mask, (b * H + h) * T, T);
      for (let tq = 0; tq < T; tq++) {
        const keys = Array.from({ length: causal ? tq + 1 : T }, (_, tk) => tk);
        const scores = keys.map(
          (tk) =>
            columns.reduce((s, d) => s + at(b, tq, h, d, params.qOffset) * at(b, tk, kv, d, params.kOffset), 0) /
            Math.sqrt(HD),
        );
        const total = scores.reduce((sum, s) => sum + Math.exp(s), 0);
        const row = (b * H + h) * T + tq;
        lse[row] = Math.log(total);
        for (const d of columns) {
          out[(b * T + tq) * H * HD + h * HD + d] = keys.reduce((sum, tk) => {
            const probability = (Math.exp(scores[tk]) / total) * pairFactor(pairs, tq, tk);
            return sum + probability * at(b, tk, kv, d, params.vOffset);
          }, 0);
        }
      }
    }
  }
  return { out, lse };
}

function uniform(n: number, seed: number): Float32Array<ArrayBuffer> {
  const random = seededRandom(seed);
  return Float32Array.from({ length: n }, () => random() * 2 - 1);
}

describe.each(attentionShapes.map((shape) => [shape.name, shape] as const))('%s', (_, shape) => {
  const { B, T, H, HD } = shape;
  const params = attentionParamsOf(shape);
  const qkv = uniform(B * T * params.stride, 5);
  const out = new Float32Array(B * T * H * HD);
  const lse = new Float32Array(B * H * T);
  attention.run([qkv, control, out, lse], params);

  test('forward is the definition', () => {
    const want = expected(qkv, shape);
    for (let i = 0; i < out.length; i++) expect(out[i]).toBeCloseTo(want.out[i], 5);
    for (let i = 0; i < lse.length; i++) expect(lse[i]).toBeCloseTo(want.lse[i], 5);
  });

  test('backward is the slope of forward', () => {
    const dout = uniform(out.length, 6);
    const dqkv = new Float32Array(qkv.length).fill(99);
    const delta = new Float32Array(lse.length);
    attentionGradQ.run([qkv, control, out, dout, lse, dqkv, delta], params);
    attentionGradKV.run([qkv, control, dout, lse, delta, dqkv], params);
    const loss = (values: ArrayLike<number>) =>
      expected(values, shape).out.reduce((sum, value, i) => sum + value * dout[i], 0);
    const random = seededRandom(8);
    const step = 1e-4;
    for (let probe = 0; probe < Math.min(12, qkv.length); probe++) {
      const i = Math.floor(random() * qkv.length);
      if (i % params.stride >= H * HD + (2 * H * HD) / params.groupSize) {
        expect(dqkv[i]).toBe(99);
        continue;
      }
      const up = Float64Array.from(qkv);
      const down = Float64Array.from(qkv);
      up[i] += step;
      down[i] -= step;
      expect(dqkv[i]).toBeCloseTo((loss(up) - loss(down)) / (2 * step), 5);
    }
  });
});

test('scores far apart neither overflow nor lose the softmax', () => {
  const shape = { name: '', B: 1, T: 2, H: 1, HD: 1, causal: 0, dropout: 0 };
  const qkv = Float32Array.of(1000, 1000, 3, 1000, -1000, 5);
  const out = new Float32Array(2);
  const lse = new Float32Array(2);
  attention.run([qkv, control, out, lse], attentionParamsOf(shape));
  expect(Array.from(out)).toEqual([3, 3]);
  expect(Array.from(lse)).toEqual([1e6, 1e6]);
});
