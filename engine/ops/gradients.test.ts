import { expect, test } from 'vitest';
import { addResidual } from './add/residual.ts';
import { attend } from './attention/attend.ts';
import { drop } from './dropout/drop.ts';
import { embed } from './embedding/embed.ts';
import { embedPositions } from './embedding/embed-positions.ts';
import { activateGelu } from './gelu/activate.ts';
import { elementsOf, Graph, type Value } from './graph.ts';
import type { View } from './kernel.ts';
import { seededRandom } from './kernel-case.ts';
import { addNormalize, normalize } from './layer-norm/normalize.ts';
import { conv1d } from './linear/conv1d.ts';
import { linear } from './linear/linear.ts';
import { project } from './linear/project.ts';
import { addRmsNormalize, rmsNormalize } from './rms-norm/rms-normalize.ts';
import { rotaryTable, rotate } from './rotary/rotate.ts';
import { gateSilu } from './silu-mul/gate.ts';

/** Gradient rules of op functions, run as a model runs them, against the slope of the forward pass. */

const ROWS = 6;
const tokens = { batch: 2, tokens: 3 };

type Ops = (
  g: Graph,
  of: { x: (columns: number) => Value; parameter: (name: string, shape: number[]) => Value },
) => Value;

const site = { dropout: 0.3, maskKey0: 4, maskKey1: 1 };
const noDrop = { ...site, dropout: 0 };

const ops: Record<string, Ops> = {
  linear: (g, { x, parameter }) => linear(g, x(4), parameter('w', [3, 4]), parameter('b', [3]), { name: 'y' }),
  'linear, used twice': (g, { x, parameter }) => {
    const [w, b] = [parameter('w', [4, 4]), parameter('b', [4])];
    return linear(g, linear(g, x(4), w, b, { name: 'y', relu: true }), w, b, { name: 'z' });
  },
  'linear, its relu dropped in place': (g, { x, parameter }) => {
    const hidden = linear(g, x(4), parameter('w', [6, 4]), parameter('b', [6]), { name: 'y', relu: true, drop: site });
    return linear(g, hidden, parameter('v', [3, 6]), parameter('c', [3]), { name: 'z' });
  },
  'linear, its relu dropped and used twice': (g, { x, parameter }) => {
    const hidden = linear(g, x(4), parameter('w', [6, 4]), parameter('b', [6]), { name: 'y', relu: true, drop: site });
    const first = linear(g, hidden, parameter('v', [3, 6]), parameter('c', [3]), { name: 'z1' });
    return addResidual(g, first, linear(g, hidden, parameter('u', [3, 6]), parameter('d', [3]), { name: 'z2' }));
  },
  conv1d: (g, { x, parameter }) => conv1d(g, x(4), parameter('w', [4, 3]), parameter('b', [3]), 'y'),
  'conv1d, used twice': (g, { x, parameter }) => {
    const [w, b] = [parameter('w', [4, 4]), parameter('b', [4])];
    return conv1d(g, conv1d(g, x(4), w, b, 'y'), w, b, 'z');
  },
  'projections side by side': (g, { x, parameter }) => {
    const layers = [3, 2].map((n) => ({ module: `m${n}`, weight: parameter(`w${n}`, [n, 4]) }));
    return project(g, x(4), layers, { name: 'y' });
  },
  'a padded projection': (g, { x, parameter }) =>
    project(g, x(4), [{ module: '', weight: parameter('w', [3, 4]) }], { name: 'y', rowStride: 4 }),
  'a residual': (g, { x, parameter }) => {
    const input = x(4);
    return addResidual(g, conv1d(g, input, parameter('w', [4, 4]), parameter('b', [4]), 'y'), input);
  },
  'layer norm': (g, { x, parameter }) =>
    normalize(g, x(5), { weight: parameter('w', [5]), bias: parameter('b', [5]), eps: 1e-5 }, 'y'),
  'a pre-norm block of layer norms': (g, { x, parameter }) => {
    const input = x(5);
    const norm = (name: string) => ({
      weight: parameter(`${name}.w`, [5]),
      bias: parameter(`${name}.b`, [5]),
      eps: 1e-5,
    });
    const first = conv1d(g, normalize(g, input, norm('1'), '1'), parameter('w', [5, 5]), parameter('b', [5]), 'a');
    const { sum, y } = addNormalize(g, first, input, norm('2'), '2');
    return addResidual(g, conv1d(g, y, parameter('v', [5, 5]), parameter('c', [5]), 'm'), sum);
  },
  'a dropped sum with a residual, and its norm': (g, { x, parameter }) => {
    const input = x(5);
    const weights = { weight: parameter('w', [5]), bias: parameter('b', [5]), eps: 1e-5 };
    const branch = conv1d(g, input, parameter('v', [5, 5]), parameter('c', [5]), 'a');
    const { sum, y } = addNormalize(g, branch, input, weights, 'n', site);
    return addResidual(g, conv1d(g, y, parameter('u', [5, 5]), parameter('d', [5]), 'm'), sum);
  },
  'rms norm': (g, { x, parameter }) => rmsNormalize(g, x(5), { weight: parameter('w', [5]), eps: 1e-6 }, 'y'),
  'a pre-norm block of rms norms': (g, { x, parameter }) => {
    const input = x(5);
    const norm = (name: string) => ({ weight: parameter(name, [5]), eps: 1e-6 });
    const layer = (from: Value, name: string) =>
      project(g, from, [{ module: '', weight: parameter(name, [5, 5]) }], { name });
    const { sum, y } = addRmsNormalize(g, layer(rmsNormalize(g, input, norm('1'), '1'), 'a'), input, norm('2'), '2');
    return addResidual(g, layer(y, 'm'), sum);
  },
  gelu: (g, { x }) => activateGelu(g, x(4), 'y'),
  'a feed-forward of gelu': (g, { x, parameter }) =>
    conv1d(g, activateGelu(g, x(4), 'a'), parameter('w', [4, 3]), parameter('b', [3]), 'y'),
  'a gated one': (g, { x, parameter }) =>
    project(g, gateSilu(g, x(6), 'a'), [{ module: '', weight: parameter('w', [3, 3]) }], { name: 'y' }),
  'silu gate': (g, { x }) => gateSilu(g, x(6), 'y'),
  rotary: (g, { x }) => {
    const input = x(10);
    rotate(g, input, g.constant('angles', [3, 2, 2], rotaryTable(3, 4, 100)), { tokens: 3, heads: 2, headDim: 4 });
    return input;
  },
  attention: (g, { x }) => attend(g, x(12), { ...tokens, heads: 2, headDim: 2, causal: false }, noDrop, 'y'),
  'grouped, causal attention with dropout': (g, { x }) =>
    attend(g, x(16), { ...tokens, heads: 4, kvHeads: 2, headDim: 2, causal: true }, site, 'y'),
  dropout: (g, { x }) => drop(g, x(4), site, 'y'),
  embedding: (g, { parameter }) => {
    const row = g.constant('row', [3], Float32Array.of(1, 2, 3));
    return embed(g, g.batch('input', [ROWS]), parameter('w', [5, 3]), row, 2, 'y');
  },
  'embedding of tokens and positions': (g, { parameter }) =>
    embedPositions(g, g.batch('input', [ROWS]), parameter('w', [5, 3]), parameter('p', [4, 3]), tokens, 'y'),
  'a tied embedding': (g, { parameter }) => {
    const table = parameter('w', [5, 4]);
    const y = embedPositions(g, g.batch('input', [ROWS]), table, parameter('p', [3, 4]), tokens, 'y');
    return project(g, y, [{ module: '', weight: table }], { name: 'z' });
  },
};

/** An op with a loss Σ y·seed: its graph, and the runs of its forward and of all of it at given parameters. */
function trace(build: Ops, againFromBytes?: number) {
  const g = new Graph({ againFromBytes });
  const shapes = new Map<string, readonly number[]>();
  const parameter = (name: string, shape: number[]) => {
    shapes.set(name, shape);
    return g.parameter(name, shape);
  };
  // x is a parameter turned on its side by a product with 1: an activation that a gradient can reach.
  const one = g.constant(
    'one',
    [ROWS, ROWS],
    Float32Array.from({ length: ROWS * ROWS }, (_, i) => (i % 7 ? 0 : 1)),
  );
  const x = (columns: number) =>
    project(g, one, [{ module: '', weight: parameter('x', [columns, ROWS]) }], { name: 'x' });
  const y = build(g, { x, parameter });
  const forwardCalls = g.calls.length;
  const seed = random(elementsOf(y.shape), 9);
  g.shareGradient(y, g.constant('seed', y.shape, seed));
  g.backward();
  const run = (parameters: ReadonlyMap<string, Float32Array<ArrayBuffer>>, calls: number): Map<number, View> => {
    const views = new Map<number, View>();
    for (const value of g.values) {
      const n = elementsOf(value.shape);
      // What is not written shows.
      const empty = value.dtype === 'u32' ? new Uint32Array(n) : new Float32Array(n).fill(Number.NaN);
      if (value.role === 'control') empty.fill(0);
      if (value.role === 'batch') empty.set([1, 4, 1, 0, 1, 4]);
      const given = value.role === 'parameter' ? parameters.get(value.name) : value.data;
      views.set(value.id, given ? (given.slice() as View) : empty);
    }
    for (const { kernel, operands, params } of g.calls.slice(0, calls))
      kernel.run(
        operands.map((o) => views.get(o.id)!),
        params,
      );
    return views;
  };
  const width = y.shape[1];
  // A padded row counts for nothing.
  const loss = (parameters: ReadonlyMap<string, Float32Array<ArrayBuffer>>) =>
    (run(parameters, forwardCalls).get(y.id) as Float32Array).reduce(
      (sum, v, i) => (Number.isNaN(v) && i % width >= 3 ? sum : sum + v * seed[i]),
      0,
    );
  const gradients = () => g.values.filter((value) => value.role === 'parameter-gradient');
  return { g, shapes, run, loss, gradients };
}

function random(n: number, seed: number): Float32Array<ArrayBuffer> {
  const next = seededRandom(seed);
  return Float32Array.from({ length: n }, () => next() * 2 - 1);
}

test.each(Object.entries(ops))('%s', (_, build) => {
  const { g, shapes, run, loss, gradients } = trace(build);
  const parameters = new Map([...shapes].map(([name, shape], i) => [name, random(elementsOf(shape), 20 + i)]));
  const views = run(parameters, g.calls.length);
  expect(
    gradients()
      .map((value) => value.parameter)
      .sort(),
  ).toEqual([...shapes.keys()].sort());
  for (const value of gradients()) {
    const found = views.get(value.id)!;
    const h = 1 / 256;
    found.forEach((slope, i) => {
      const moved = (by: number) => {
        const changed = parameters.get(value.parameter!)!.slice();
        changed[i] += by;
        return loss(new Map([...parameters, [value.parameter!, changed]]));
      };
      const wanted = (moved(h) - moved(-h)) / (2 * h);
      const error = Math.abs(slope - wanted) / Math.max(1, Math.abs(wanted));
      if (!(error < 2e-3)) expect.fail(`d ${value.parameter}[${i}] is ${slope}, the slope ${wanted}`);
    });
  }
});

/** The ops that backward has again rather than keep. */
const again = [
  'a pre-norm block of layer norms',
  'a pre-norm block of rms norms',
  'a feed-forward of gelu',
  'a gated one',
];

test.each(again)('%s, computed again in backward, has the same gradients to the bit', (name) => {
  const kept = trace(ops[name]);
  const parameters = new Map([...kept.shapes].map(([p, shape], i) => [p, random(elementsOf(shape), 20 + i)]));
  const computed = trace(ops[name], 0);
  const repeated = computed.g.calls.length - kept.g.calls.length;
  expect(repeated).toBeGreaterThan(0);
  const [a, b] = [kept, computed].map(({ g, run, gradients }) => {
    const views = run(parameters, g.calls.length);
    return gradients().map((value) => [value.parameter, views.get(value.id)]);
  });
  expect(b).toEqual(a);
  // A threshold above all of them leaves everything as it is.
  expect(trace(ops[name], 1e6).g.calls).toHaveLength(kept.g.calls.length);
});
