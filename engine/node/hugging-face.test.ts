import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { bytesSource } from '../checkpoint/byte-source.ts';
import { openWeights } from '../checkpoint/fixtures/read-weights.ts';
import { parseConfig } from '../config.ts';
import { forwardLogits } from '../interpret/forward.ts';
import { buildModel } from '../model/build-model.ts';
import { parameterOf } from '../model/model.ts';
import { liveBytes } from '../schedule/memory.ts';
import { openDeviceLogits } from '../trainer/device-logits.ts';
import { interpretedLogits, sampleTokens } from '../trainer/sample.ts';
import {
  type Batch,
  interpreterPlace,
  openRanks,
  type Place,
  type RanksInput,
  type ReferenceStep,
  softwareGpuPlace,
  type TestRanks,
} from './fixtures/reference-run.ts';

/** Law 3 for GPT-2 and Llama: they train as Hugging Face's models do, from the files that save_pretrained wrote. */

const models = {
  gpt2: { kind: 'gpt2', vocabSize: 101, nLayer: 2, nHead: 4, nEmbd: 32, nPositions: 24 },
  llama: {
    kind: 'llama',
    vocabSize: 101,
    hiddenSize: 32,
    intermediateSize: 88,
    numHiddenLayers: 2,
    numAttentionHeads: 4,
    numKeyValueHeads: 2,
    ropeTheta: 10_000,
    rmsNormEps: 1e-6,
  },
} as const;
type Kind = keyof typeof models;
const kinds: readonly Kind[] = ['gpt2', 'llama'];

const adamw = { kind: 'adamw', lr: 2e-3, weightDecay: 0.1 };
const sgd = { kind: 'sgd', lr: 0.05 };
const settings = {
  adamw_world1: { devices: 1, optimizer: adamw },
  adamw_world2: { devices: 2, optimizer: adamw },
  sgd_world1: { devices: 1, optimizer: sgd },
  sgd_world2: { devices: 2, optimizer: sgd },
};
const STEPS = 10;
/** The batches are given; a corpus of such blocks would fit GPT-2's positions. */
const corpus = { kind: 'moby-dick', blockSize: 16 };

interface Expected extends Record<keyof typeof settings, ReferenceStep[]> {
  readonly param_count: number;
  /** The first logits of the first rows. */
  readonly logits_step0_rank0_first: number[][];
  /** 4 tokens of a prompt and the 10 that generate() added. */
  readonly greedy_after_adamw_world1: number[];
}

/** [step][rank] */
type Batches = { input: number[][]; target: number[][] }[][];

const open = (kind: Kind, name: string) => readFileSync(new URL(`../testdata/${kind}/${name}`, import.meta.url));
const json = (kind: Kind, name: string) => JSON.parse(open(kind, name).toString());
const weights = (kind: Kind, name: string) => openWeights(bytesSource(name, open(kind, name)));
const expected = { gpt2: json('gpt2', 'expected.json') as Expected, llama: json('llama', 'expected.json') as Expected };

async function tensorsOf(kind: Kind, name: string): Promise<Map<string, Float32Array<ArrayBuffer>>> {
  const file = await weights(kind, name);
  return new Map(await Promise.all(file.names.map(async (n) => [n, await file.readFloat32(n)] as const)));
}

/** A run of the reference's model from its initial weights, on its batches. */
async function reference(kind: Kind, config: object): Promise<RanksInput> {
  const batches = json(kind, 'batches.json') as Batches;
  const initial = await tensorsOf(kind, 'hf/model.safetensors');
  return {
    config: { model: models[kind], data: corpus, ...config },
    shape: { batch: 3, tokens: 16 },
    source: async (spec, first, count) => initial.get(spec.name)!.slice(first, first + count),
    batch: (step, rank): Batch => {
      const { input, target } = batches[step][rank];
      return { input: input.flat(), target: target.flat() };
    },
  };
}

let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
beforeAll(async () => {
  gpu = await softwareGpuPlace();
}, 60_000);
afterAll(() => gpu?.device.close());
const places: Record<string, () => Place> = { interpreter: () => interpreterPlace, 'a software GPU': () => gpu };

const l2 = (values: Float32Array) => Math.sqrt(values.reduce((sum, v) => sum + v * v, 0));

/** Where a softmax does not change when all its inputs move alike: the true gradient is 0. By name, as law 3 has it. */
const isKeyBias = (name: string, i: number, length: number) =>
  name.endsWith('c_attn.bias') && i >= length / 3 && i < (2 * length) / 3;

describe.each(kinds)('%s', (kind) => {
  it("has the names, shapes and order that Hugging Face's file has", async () => {
    const model = buildModel(parseConfig({ model: models[kind], data: corpus }).model, null);
    const file = await weights(kind, 'hf/model.safetensors');
    const shapes = (names: readonly string[], shape: (name: string) => readonly number[]) =>
      names.map((name) => `${name} [${shape(name)}]`).toSorted();
    const own = model.parameters.map(({ name }) => name);
    expect(shapes(own, (name) => parameterOf(model, name).shape)).toEqual(shapes(file.names, file.shape));
    expect(model.parameters.reduce((n, p) => n + p.shape.reduce((a, b) => a * b, 1), 0)).toBe(
      expected[kind].param_count,
    );
  });

  it('has the logits of the first batch', async () => {
    const model = buildModel(parseConfig({ model: models[kind], data: corpus }).model, null);
    const [[{ input }]] = json(kind, 'batches.json') as Batches;
    const parameters = await tensorsOf(kind, 'hf/model.safetensors');
    const shape = { batch: input.length, tokens: input[0].length };
    const logits = await forwardLogits(model, parameters, Uint32Array.from(input.flat()), shape);
    expected[kind].logits_step0_rank0_first.forEach((row, r) => {
      row.forEach((value, c) => {
        expect(Math.abs(logits[r * model.vocabSize + c] - value)).toBeLessThan(1e-5);
      });
    });
  });

  it('continues a prompt as generate() does, greedily, from the weights that training left', async () => {
    const model = buildModel(parseConfig({ model: models[kind], data: corpus }).model, null);
    const all = expected[kind].greedy_after_adamw_world1;
    const parameters = await tensorsOf(kind, 'adamw_world1_final.safetensors');
    const onDevice = await openDeviceLogits(model, parameters, gpu.device, { software: true, maxTokens: 13 });
    for (const next of [interpretedLogits(model, parameters), onDevice.next]) {
      const tokens: number[] = [];
      for await (const token of sampleTokens(model, next, all.slice(0, 4), { count: 10 })) tokens.push(token);
      expect(tokens).toEqual(all.slice(4));
    }
    await expect(onDevice.next(all)).rejects.toThrow(/14 tokens, the device was made ready for 13/);
    // Less than a buffer for each value.
    expect(onDevice.bytes).toBeLessThan(4 * expected[kind].param_count + 90_000);
    onDevice.close();
  });

  describe.each(Object.keys(places))('on %s', (place) => {
    for (const [setting, config] of Object.entries(settings))
      for (const strategy of ['ddp', 'fsdp'])
        it(`${setting} under ${strategy}: losses, norms, memory, weights`, async () => {
          const ranks = await openRanks(places[place](), await reference(kind, { ...config, strategy }));
          const outcomes = await ranks.train(STEPS);
          outcomes.forEach((byRank, step) => {
            const { losses, grad_norm } = expected[kind][setting as keyof typeof settings][step];
            byRank.forEach(({ loss, gradNorm }, rank) => {
              expect(Math.abs(loss / losses[rank][0] - 1)).toBeLessThan(1e-4);
              expect(Math.abs(gradNorm / grad_norm - 1)).toBeLessThan(1e-4);
            });
          });
          expectMemoryAsPlanned(ranks);
          if (config.optimizer === adamw)
            expectWeights(await ranks.parameters(), await tensorsOf(kind, `${setting}_final.safetensors`));
          await ranks.close();
        });

    it('gradients of the first step, within 1e-5 of their norm', async () => {
      // What SGD's momentum starts with.
      const optimizer = { kind: 'sgd', momentum: 0.9 };
      const ranks = await openRanks(places[place](), await reference(kind, { devices: 1, optimizer }));
      await ranks.train(1);
      const ours = await ranks.state('momentum_buffer');
      await ranks.close();
      const theirs = await tensorsOf(kind, 'grads_step0.safetensors');
      expect([...ours.keys()].sort()).toEqual([...theirs.keys()].sort());
      for (const [name, gradient] of theirs) {
        const mine = ours.get(name)!;
        const error = l2(mine.map((v, i) => v - gradient[i])) / l2(gradient);
        if (!(error < 1e-5)) expect.fail(`the gradient of ${name} is off by ${error} of its norm`);
        mine.forEach((value, i) => {
          if (isKeyBias(name, i, mine.length)) expect(Math.abs(value)).toBeLessThan(1e-7);
        });
      }
    });
  });
});

function expectMemoryAsPlanned(ranks: TestRanks): void {
  ranks.runs.forEach((run, rank) => {
    const { schedule } = run.steps[0];
    const iteration = STEPS - 2;
    ranks.recorders[rank].check(iteration, schedule);
    expect(ranks.recorders[rank].liveBytes(iteration, schedule.steps.length)).toEqual(liveBytes(schedule));
    expect(ranks.engines[rank].memory().peakBytes).toBe(run.memory.reservedBytes);
  });
}

function expectWeights(ours: Map<string, Float32Array>, reference: Map<string, Float32Array>): void {
  for (const [name, theirs] of reference) {
    const mine = ours.get(name)!;
    theirs.forEach((value, i) => {
      const bound = isKeyBias(name, i, theirs.length) ? STEPS * adamw.lr : 1e-4;
      if (!(Math.abs(mine[i] - value) <= bound)) expect.fail(`${name}[${i}]: ${mine[i]}, PyTorch has ${value}`);
    });
  }
}
