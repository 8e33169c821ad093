import { beforeEach, describe, expect, test, vi } from 'vitest';
import { CONTROL, CONTROL_ELEMENTS } from '../control.ts';
import { elementsOf, Graph, type GraphOptions, type Value } from '../graph.ts';
import type { View } from '../kernel.ts';
import { seededRandom } from '../kernel-case.ts';
import { linear } from '../linear/linear.ts';
import { headLoss } from './head-loss.ts';

/** A head in pieces beside the same head at once, over one layer; pieces of as many rows as each test says. */

const pieces = vi.hoisted(() => ({ rows: 0 }));
vi.mock('./head-rows.ts', () => ({ headRows: (R: number) => Math.min(R, pieces.rows) }));
beforeEach(() => {
  pieces.rows = Number.POSITIVE_INFINITY;
});

const K = 6;
const IN = 3;
const WEIGHT = 0.5;

interface Shape {
  readonly R: number;
  readonly V: number;
  readonly hasBias: boolean;
}

function traced({ R, V, hasBias }: Shape, rows: number, options: GraphOptions = {}) {
  pieces.rows = rows;
  const g = new Graph(options);
  const given = g.constant('given', [R, IN], random(R * IN, 1));
  const x = linear(g, given, g.parameter('w', [K, IN]), g.parameter('b', [K]), { name: 'x' });
  const bias = hasBias ? g.parameter('head.bias', [V]) : null;
  const head = { module: 'head', weight: g.parameter('head.weight', [V, K]), bias };
  headLoss(g, x, head, g.batch('target', [R]), { weight: WEIGHT, first: true });
  if (!options.forwardOnly) g.backward();
  const views = new Map(g.values.map((value) => [value.id, fill(value, V)]));
  for (const { kernel, operands, params } of g.calls) {
    const own = operands.map(({ id }) => views.get(id)!);
    kernel.run(own, params);
  }
  const find = (wanted: (value: Value) => boolean) => {
    const found = g.values.find(wanted);
    return found && (views.get(found.id) as Float32Array);
  };
  return {
    g,
    named: (name: string) => find((value) => value.name === name),
    gradient: (parameter: string) => find((value) => value.parameter === parameter),
  };
}

/** What is not written shows. */
function fill(value: Value, V: number): View {
  const n = elementsOf(value.shape);
  if (value.role === 'control') return new Float32Array(CONTROL_ELEMENTS);
  if (value.role === 'batch') return Uint32Array.from({ length: n }, (_, i) => (7 * i * i + 3 * i) % V);
  if (value.role === 'parameter') return random(n, value.name.length);
  return value.data?.slice() ?? new Float32Array(n).fill(Number.NaN);
}

function random(n: number, seed: number): Float32Array<ArrayBuffer> {
  const next = seededRandom(seed);
  return Float32Array.from({ length: n }, () => next() * 2 - 1);
}

/** dW and db in float64 from the gradients of the logits that the definition gives. */
function exactly({ R, V, hasBias }: Shape, x: Float32Array) {
  const W = random(V * K, 'head.weight'.length);
  const b = hasBias ? random(V, 'head.bias'.length) : new Float32Array(V);
  const [dW, db] = [new Float64Array(V * K), new Float64Array(V)];
  for (let r = 0; r < R; r++) {
    const row = x.subarray(r * K, (r + 1) * K);
    const e = Array.from(b, (bias, v) => Math.exp(row.reduce((sum, value, k) => sum + value * W[v * K + k], bias)));
    const total = e.reduce((sum, value) => sum + value, 0);
    e.forEach((value, v) => {
      const d = ((value / total - ((7 * r * r + 3 * r) % V === v ? 1 : 0)) * WEIGHT) / R;
      db[v] += d;
      row.forEach((of, k) => {
        dW[v * K + k] += d * of;
      });
    });
  }
  return { dW, db };
}

const shapes = [
  { R: 10, V: 97, rows: 4 },
  { R: 9, V: 97, rows: 4 },
  { R: 8, V: 96, rows: 4 },
  { R: 2, V: 5, rows: 1 },
  { R: 141, V: 259, rows: 70 },
].flatMap((shape) => [true, false].map((hasBias) => ({ ...shape, hasBias })));

describe.each(shapes)('$R rows of $V, $rows at a time, bias $hasBias', ({ rows, ...shape }) => {
  test('losses and the gradient of the input are to the bit what they are at once', () => {
    const [cut, whole] = [traced(shape, rows), traced(shape, shape.R)];
    expect(cut.g.calls.length).toBeGreaterThan(whole.g.calls.length);
    expect(cut.named('head.loss.rows')).toEqual(whole.named('loss.rows'));
    expect(cut.named('control')![CONTROL.loss]).toBe(whole.named('control')![CONTROL.loss]);
    expect(cut.named('x.grad')).toEqual(whole.named('x.grad'));
    for (const name of ['w', 'b']) expect(cut.gradient(name)).toEqual(whole.gradient(name));
  });

  test('the gradients of weight and bias are near the exact sums', () => {
    const cut = traced(shape, rows);
    const { dW, db } = exactly(shape, cut.named('x')!);
    for (const [name, wanted] of [
      ['head.weight', dW],
      ...(shape.hasBias ? [['head.bias', db] as const] : []),
    ] as const) {
      const scale = Math.max(...wanted.map(Math.abs));
      cut.gradient(name)!.forEach((value, i) => {
        if (!(Math.abs(value - wanted[i]) < 2e-6 * scale)) expect.fail(`${name}[${i}] is ${value}, not ${wanted[i]}`);
      });
    }
  });

  test('forward alone has the same losses, and no gradient', () => {
    const cut = traced(shape, rows, { forwardOnly: true });
    expect(cut.named('head.loss.rows')).toEqual(traced(shape, rows).named('head.loss.rows'));
    expect(cut.g.calls.every(({ phase }) => phase === 'forward')).toBe(true);
    expect(cut.g.values.some(({ name }) => name.includes('grad'))).toBe(false);
  });
});

describe('what is frozen', () => {
  const shape = { R: 9, V: 97, hasBias: true };
  const products = (frozen: string[]) =>
    traced(shape, 4, { frozen: new Set(frozen) }).g.calls.flatMap(({ kernel, phase }) =>
      phase === 'backward' && /^(matmul|column)/.test(kernel.name) ? [kernel.name] : [],
    );

  test('the head: no gradient of its own, all of the input', () => {
    const [frozen, trained] = [traced(shape, 4, { frozen: new Set(['head.weight', 'head.bias']) }), traced(shape, 4)];
    expect(frozen.gradient('head.weight')).toBeUndefined();
    expect(frozen.named('x.grad')).toEqual(trained.named('x.grad'));
    expect(products(['head.weight', 'head.bias']).slice(0, 4)).toEqual([
      'matmul-nt-bias',
      'matmul-nn',
      'matmul-nt-bias',
      'matmul-nn',
    ]);
  });

  test('all but the head: no product for the input', () => {
    expect(products(['w', 'b'])).not.toContain('matmul-nn');
    expect(traced(shape, 4, { frozen: new Set(['w', 'b']) }).gradient('head.weight')).toEqual(
      traced(shape, 4).gradient('head.weight'),
    );
  });
});

test('a second micro-batch adds to the gradients and to the loss', () => {
  pieces.rows = 4;
  const g = new Graph();
  const run = (first: boolean) => {
    const x = g.constant('x', [9, K], random(9 * K, 1));
    const head = { module: 'head', weight: g.parameter('head.weight', [97, K]), bias: g.parameter('head.bias', [97]) };
    headLoss(g, x, head, g.batch('target', [9]), { weight: WEIGHT, first });
    g.backward();
  };
  run(true);
  g.nextMicroBatch(false);
  run(false);
  const flags = (name: string, flag: string) =>
    g.calls.flatMap(({ kernel, params }) => (kernel.name === name ? [params[flag]] : []));
  expect(flags('matmul-tn-sums', 'accumulate')).toEqual([0, 1, 1, 1, 1, 1]);
  expect(flags('matmul-tn-sums', 'sumsAccumulate')).toEqual([0, 1, 1, 1, 1, 1]);
  expect(flags('loss-mean', 'accumulate')).toEqual([0, 1]);
});
