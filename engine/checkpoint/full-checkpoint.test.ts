import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { bytesSource, memorySink } from './byte-source.ts';
import {
  type CheckpointOptimizer,
  type CheckpointPart,
  type FullCheckpoint,
  fullCheckpointBytes,
  readFullCheckpoint,
  type StoredCheckpoint,
  writeFullCheckpoint,
} from './full-checkpoint.ts';
import { openWeights } from './weights-file.ts';

const PARAMETERS = [
  { name: 'embedding.weight', shape: [5, 3] },
  { name: 'layer.bias', shape: [7] },
  { name: 'empty', shape: [0, 2] },
];
const ADAM: CheckpointOptimizer = { kind: 'adam', lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0, step: 4 };

/** Recognisable contents for each part of each parameter. */
function contents(name: string, part: CheckpointPart): Float32Array<ArrayBuffer> {
  const { shape } = PARAMETERS.find((parameter) => parameter.name === name)!;
  return Float32Array.from({ length: shape.reduce((a, b) => a * b) }, (_, i) => i + part.length + name.length / 64);
}

function checkpoint(changes: Partial<FullCheckpoint> = {}): FullCheckpoint & { readonly asked: string[] } {
  const asked: string[] = [];
  return {
    parameters: PARAMETERS,
    optimizer: ADAM,
    iter: 4,
    config: { name: 'run', optimizer: { kind: 'adam', betas: [0.9, 0.999] }, strategy: null, large: true },
    extra: { samples: 2 ** 33 },
    asked,
    async *read(name, part) {
      asked.push(`${name} ${part}`);
      const bytes = new Uint8Array(contents(name, part).buffer);
      yield bytes.subarray(0, 8);
      yield bytes.subarray(8);
    },
    ...changes,
  };
}

async function roundTrip(spec: FullCheckpoint): Promise<StoredCheckpoint> {
  const sink = memorySink();
  const bytes = await writeFullCheckpoint(spec, sink);
  expect(sink.bytes().length).toBe(bytes);
  expect(fullCheckpointBytes(spec)).toBe(bytes);
  return readFullCheckpoint(bytesSource('step-000004.ckpt', sink.bytes()));
}

describe('what is written', () => {
  test('comes back: weights, state, iter, config, extra', async () => {
    const stored = await roundTrip(checkpoint());
    const { file, model, optimizers } = stored;
    expect([...model.keys()]).toEqual(PARAMETERS.map(({ name }) => name));
    for (const { name, shape } of PARAMETERS) {
      expect(model.get(name)).toMatchObject({ dtype: 'float32', shape });
      expect(new Float32Array((await file.readTensor(model.get(name)!)).buffer)).toEqual(contents(name, 'param'));
      const state = optimizers[0].state.get(name)!;
      expect([...state.keys()]).toEqual(['step', 'exp_avg', 'exp_avg_sq']);
      expect(state.get('step')!.shape).toEqual([]);
      expect(new Float32Array((await file.readTensor(state.get('step')!)).buffer)).toEqual(Float32Array.of(4));
      for (const part of ['exp_avg', 'exp_avg_sq'] as const) {
        expect(new Float32Array((await file.readTensor(state.get(part)!)).buffer)).toEqual(contents(name, part));
      }
    }
    expect(stored.iter).toBe(4);
    expect(stored.config).toEqual(checkpoint().config);
    expect(stored.extra).toEqual({ samples: 2 ** 33 });
  });

  test('tensors are asked for in the file’s order, each once: all weights, then the state of each', async () => {
    const spec = checkpoint();
    await writeFullCheckpoint(spec, memorySink());
    const names = PARAMETERS.map(({ name }) => name);
    expect(spec.asked).toEqual([
      ...names.map((name) => `${name} param`),
      ...names.flatMap((name) => [`${name} exp_avg`, `${name} exp_avg_sq`]),
    ]);
  });

  test('its size asks for nothing', () => {
    const spec = checkpoint();
    fullCheckpointBytes(spec);
    expect(spec.asked).toEqual([]);
  });

  test('it is also a weights file', async () => {
    const sink = memorySink();
    await writeFullCheckpoint(checkpoint(), sink);
    const weights = await openWeights(bytesSource('x', sink.bytes()));
    expect(weights.path).toEqual(['model']);
    expect(await weights.readFloat32('layer.bias')).toEqual(contents('layer.bias', 'param'));
  });

  test.each<[string, Partial<CheckpointOptimizer>, string[]]>([
    ['sgd with momentum', { kind: 'sgd', momentum: 0.9, nesterov: true }, ['momentum_buffer']],
    ['sgd without has no state', { kind: 'sgd', momentum: 0 }, []],
    ['before the first step there is none', { step: 0 }, []],
    ['adamw', { kind: 'adamw' }, ['step', 'exp_avg', 'exp_avg_sq']],
  ])('%s', async (_, changes, parts) => {
    const { optimizers } = await roundTrip(checkpoint({ optimizer: { ...ADAM, ...changes } }));
    const [{ state, groups, groupNames }] = optimizers;
    expect(state.size).toBe(parts.length === 0 ? 0 : 3);
    for (const tensors of state.values()) expect([...tensors.keys()]).toEqual(parts);
    expect(groupNames).toEqual([PARAMETERS.map(({ name }) => name)]);
    if (changes.kind === 'sgd') expect(groups[0]).toMatchObject({ momentum: changes.momentum, dampening: 0 });
    else expect(groups[0]).toMatchObject({ decoupled_weight_decay: changes.kind === 'adamw' });
  });

  test('a frozen parameter has no state, a tied one is stored once', async () => {
    const parameters = [
      { ...PARAMETERS[0], frozen: true },
      PARAMETERS[1],
      { name: 'head.weight', shape: [5, 3], tiedTo: 'embedding.weight' },
    ];
    const spec = checkpoint({ parameters });
    const { model, optimizers } = await roundTrip(spec);
    expect([...optimizers[0].state.keys()]).toEqual(['layer.bias']);
    expect(optimizers[0].groupNames).toEqual([['embedding.weight', 'layer.bias']]);
    expect(model.get('head.weight')!.storage.key).toBe(model.get('embedding.weight')!.storage.key);
    expect(spec.asked.filter((ask) => ask.includes('param'))).toEqual(['embedding.weight param', 'layer.bias param']);
  });

  test('without an optimizer', async () => {
    const { optimizers, model } = await roundTrip(checkpoint({ optimizer: null }));
    expect(optimizers).toEqual([]);
    expect(model.size).toBe(3);
  });

  test('an extra key that is taken is an error', () => {
    expect(() => fullCheckpointBytes(checkpoint({ extra: { model: 1 } }))).toThrow(/already has a key model/);
  });
});

describe('Fabric’s own files', () => {
  const open = (name: string) => {
    const path = new URL(`../testdata/demo-transformer/${name}`, import.meta.url);
    return readFullCheckpoint(bytesSource(name, readFileSync(path)));
  };

  test.each(['fabric_single_step5.ckpt', 'fabric_fsdp_full_ws1'])(
    '%s: state by number or by name is by name here',
    async (name) => {
      const { file, model, optimizers, iter, config, extra } = await open(name);
      expect(model.size).toBe(67);
      expect(iter).toBe(5);
      expect(config).toBeNull();
      expect(extra.note).toBe('café');
      const [optimizer] = optimizers;
      expect(optimizer.key).toBe('optimizer');
      expect([...optimizer.state.keys()].sort()).toEqual([...model.keys()].sort());
      for (const [parameter, parts] of optimizer.state) {
        expect(parts.get('exp_avg')!.shape).toEqual(model.get(parameter)!.shape);
        expect(new Float32Array((await file.readTensor(parts.get('step')!)).buffer)).toEqual(Float32Array.of(5));
      }
    },
  );

  test('our param_group has the options that torch wrote, in its order', async () => {
    const [theirs] = (await open('fabric_single_step5.ckpt')).optimizers;
    const [ours] = (await roundTrip(checkpoint())).optimizers;
    expect(JSON.stringify(ours.groups)).toBe(JSON.stringify(theirs.groups));
  });

  test('a file of weights alone', async () => {
    const { modelPath, iter, optimizers } = await open('init.pt');
    expect([modelPath, iter, optimizers]).toEqual([[], null, []]);
  });
});
