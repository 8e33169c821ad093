import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { demoTransformer } from '../model/demo-transformer.ts';
import { elementsOf, Graph } from '../ops/graph.ts';
import type { View } from '../ops/kernel.ts';
import type { ParameterSource } from '../trainer/state.ts';
import {
  interpreterPlace,
  openRanks,
  type Place,
  type RanksInput,
  referenceInit,
  referenceTensors,
  softwareGpuPlace,
} from './fixtures/reference-run.ts';

/**
 * Law 3 beside the recorded runs: numbers that PyTorch gave in float64 for a model of 11 words with weights from a sine, and
 * the gradients of the reference's first step.
 */

const size = { vocabSize: 11, ninp: 8, nhead: 2, nhid: 12, nlayers: 2, dropout: 0 };
const model = demoTransformer(size);
const A = { input: [1, 2, 3, 4, 5], target: [2, 3, 4, 5, 6] };
const B = { input: [3, 1, 4, 1, 5], target: [1, 4, 1, 5, 9] };

/** Element i of the p-th parameter: 0.1·sin(p + 0.37·i), and 1 more for the weights of norms. */
const sines: ParameterSource = async (spec, first, count) => {
  const p = model.parameters.findIndex(({ name }) => name === spec.name);
  const one = spec.name.includes('norm') && spec.name.endsWith('weight') ? 1 : 0;
  return Float32Array.from({ length: count }, (_, i) => one + 0.1 * Math.sin(p + 0.37 * (first + i)));
};

const golden = (config: object): RanksInput => ({
  config: { model: { kind: 'demo-transformer', ...size }, ...config },
  source: sines,
  shape: { batch: 1, tokens: 5 },
  batch: (_, rank) => (rank === 0 ? A : B),
});

async function losses(place: Place, config: object, steps: number) {
  const ranks = await openRanks(place, golden(config));
  const outcomes = await ranks.train(steps);
  await ranks.close();
  return outcomes;
}

function expectClose(actual: number, wanted: number, relative: number, what: string): void {
  if (!(Math.abs(actual / wanted - 1) <= relative)) expect.fail(`${what} is ${actual}, PyTorch has ${wanted}`);
}

let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
beforeAll(async () => {
  gpu = await softwareGpuPlace();
});
afterAll(() => gpu?.device.close());
const places: Record<string, () => Place> = { interpreter: () => interpreterPlace, 'a software GPU': () => gpu };

const alone = [
  {
    optimizer: { kind: 'adam', lr: 0.01 },
    wanted: [2.583020911, 2.446982602, 2.33811316, 2.243456472, 2.155655355, 2.074167847],
  },
  {
    optimizer: { kind: 'sgd', lr: 0.1 },
    wanted: [2.583020911, 2.450696839, 2.340568073, 2.247421752, 2.167559167, 2.098342612],
  },
  {
    optimizer: { kind: 'adamw', lr: 0.01, weightDecay: 0.01 },
    wanted: [2.583020911, 2.446959345, 2.338109455, 2.243494667, 2.155749172, 2.074325035],
  },
];
/** Of two ranks, with Adam: both losses and the norm. */
const together = [
  [2.583020911, 2.36517092, 0.904616968],
  [2.511944029, 2.252438666, 0.776141406],
  [2.463091899, 2.174220893, 0.709991513],
  [2.420644662, 2.111033703, 0.660649615],
];
/** The same from step 1 on with gradients clipped to a norm of 0.5. */
const clipped = [
  [2.511943875, 2.252439031, 0.776141681],
  [2.463055027, 2.173380456, 0.709409976],
];
/** L2 norms of gradients of A, and their first elements. */
const gradients: Record<string, { norm: number; first?: number[] }> = {
  'embedding.weight': { norm: 0.3462647688 },
  'transformer.encoder.layers.0.self_attn.in_proj_weight': { norm: 0.0002481621667 },
  'transformer.decoder.layers.1.multihead_attn.in_proj_bias': { norm: 0.01145518589 },
  'transformer.decoder.norm.weight': { norm: 0.08706294128, first: [0.068060859, 0.035578497, 0.015800191] },
  'decoder.bias': { norm: 0.3559331065, first: [0.066304292, 0.12555633, -0.13630598] },
};

describe.each(Object.keys(places))('golden numbers, on %s', (place) => {
  it.each(alone)('losses of one rank with $optimizer.kind', async ({ optimizer, wanted }) => {
    const outcomes = await losses(places[place](), { devices: 1, optimizer }, wanted.length);
    for (const [step, [{ loss, lossMean }]] of outcomes.entries()) {
      expectClose(loss, wanted[step], 1e-6, `the loss of step ${step}`);
      expect(lossMean).toBe(loss);
    }
  });

  it.each(['ddp', 'fsdp'])('losses and norms of two ranks under %s', async (strategy) => {
    const config = { devices: 2, strategy, optimizer: { kind: 'adam', lr: 0.01 } };
    const outcomes = await losses(places[place](), config, together.length);
    for (const [step, [first, second]] of outcomes.entries()) {
      expectClose(first.loss, together[step][0], 1e-6, `rank 0's loss of step ${step}`);
      expectClose(second.loss, together[step][1], 1e-6, `rank 1's loss of step ${step}`);
      expectClose(first.gradNorm, together[step][2], 2e-6, `the norm of step ${step}`);
      expect(second.gradNorm).toBe(first.gradNorm);
      expect(first.lossMean).toBe(Math.fround(Math.fround(first.loss + second.loss) / 2));
      expect(second.lossMean).toBe(first.lossMean);
    }
  });

  it.each(['ddp', 'fsdp', 'fsdp_cpu_offload'])(
    'losses and norms of two ranks that clip, under %s',
    async (strategy) => {
      const optimizer = { kind: 'adam', lr: 0.01 };
      const config = { devices: 2, strategy, optimizer, trainer: { gradientClipVal: 0.5 } };
      const [, ...outcomes] = await losses(places[place](), config, 1 + clipped.length);
      for (const [i, [first, second]] of outcomes.entries()) {
        expectClose(first.loss, clipped[i][0], 1e-6, `rank 0's loss of step ${i + 1}`);
        expectClose(second.loss, clipped[i][1], 1e-6, `rank 1's loss of step ${i + 1}`);
        expectClose(first.gradNorm, clipped[i][2], 2e-6, `the norm of step ${i + 1}`);
      }
    },
  );

  it('gradients', async () => {
    const found = await gradientsOf(places[place](), golden({ devices: 1 }));
    for (const [name, { norm, first = [] }] of Object.entries(gradients)) {
      expectClose(l2(found.get(name)!), norm, 1e-4, `the gradient of ${name}`);
      for (const [i, value] of first.entries()) expect(found.get(name)![i]).toBeCloseTo(value, 7);
    }
  });

  it("gradients of the reference's first step, within 1e-5 of their norm", async () => {
    for (const strategy of ['ddp', 'fsdp']) {
      const input = { config: { devices: 1, strategy }, source: await referenceInit() };
      const ours = await gradientsOf(places[place](), input);
      const theirs = await referenceTensors('adam_world1_grads_step0.safetensors');
      expect([...ours.keys()].sort()).toEqual([...theirs.keys()].sort());
      for (const [name, gradient] of theirs) {
        const mine = ours.get(name)!;
        const error = l2(mine.map((v, i) => v - gradient[i])) / l2(gradient);
        if (!(error < 1e-5)) expect.fail(`the gradient of ${name} is off by ${error} of its norm`);
        // The true gradient of a key bias is 0: a softmax does not change when all its inputs move alike.
        if (!name.endsWith('in_proj_bias')) continue;
        const third = mine.length / 3;
        for (const value of mine.subarray(third, 2 * third)) expect(Math.abs(value)).toBeLessThan(1e-7);
      }
    }
  });
});

it('log-probabilities of the forward pass', async () => {
  const rows: Record<number, number[]> = {
    0: [
      -2.77448882, -2.02999831, -2.81431243, -2.13376153, -2.7699895, -2.23377959, -2.63535629, -2.31518129,
      -2.43652419, -2.38510724, -2.22400251,
    ],
    4: [
      -2.80982825, -2.00117904, -2.85904392, -2.09796894, -2.81904625, -2.19645205, -2.68310722, -2.28195741,
      -2.47750856, -2.36109027, -2.25364237,
    ],
  };
  const logits = await forwardLogits();
  for (const [row, wanted] of Object.entries(rows)) {
    const values = logits.subarray(Number(row) * 12, Number(row) * 12 + 11);
    const logSum = Math.log(values.reduce((sum, v) => sum + Math.exp(v), 0));
    for (const [i, value] of wanted.entries()) expect(Math.abs(values[i] - logSum - value)).toBeLessThan(1e-6);
  }
});

/** Gradients of step 0: what SGD's momentum starts with. */
async function gradientsOf(place: Place, input: RanksInput): Promise<Map<string, Float32Array>> {
  const optimizer = { kind: 'sgd', momentum: 0.9 };
  const ranks = await openRanks(place, { ...input, config: { ...input.config, optimizer } });
  await ranks.train(1);
  const found = await ranks.state('momentum_buffer');
  await ranks.close();
  return found;
}

function l2(values: Float32Array): number {
  return Math.sqrt(values.reduce((sum, v) => sum + v * v, 0));
}

/** Runs the forward calls of the traced model, each value in an array of its own. Rows of 12: 11 words, padded. */
async function forwardLogits(): Promise<Float32Array> {
  const graph = new Graph();
  model.trace(graph, { batch: 1, tokens: 5 }, { rank: 0, seed: 1 });
  const views = new Map<number, View>();
  for (const value of graph.values) {
    const n = elementsOf(value.shape);
    views.set(value.id, value.dtype === 'u32' ? new Uint32Array(n) : new Float32Array(n));
    if (value.data) views.set(value.id, value.data);
    if (value.role === 'batch') (views.get(value.id) as Uint32Array).set(value.name === 'input' ? A.input : A.target);
    if (value.role === 'parameter') {
      const spec = model.parameters.find((p) => p.name === value.name)!;
      views.set(value.id, await sines(spec, 0, n));
    }
  }
  for (const { kernel, operands, params } of graph.calls)
    kernel.run(
      operands.map((o) => views.get(o.id)!),
      params,
    );
  return views.get(graph.values.find((v) => v.name === 'decoder.logits')!.id) as Float32Array;
}
