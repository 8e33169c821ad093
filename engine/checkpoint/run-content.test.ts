import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { bytesSource } from './byte-source.ts';
import { contentTree } from './checkpoint-content.ts';
import { memorySink } from './fixtures/memory-sink.ts';
import { openCheckpoint } from './open-checkpoint.ts';
import { toPlain } from './python-value.ts';
import {
  type CheckpointDescription,
  type CheckpointOptimizer,
  type CheckpointPart,
  checkpointContent,
  type PartReader,
} from './run-content.ts';
import { configOf, iterOf, readParameter, type StoredCheckpoint, samplesOf } from './stored-checkpoint.ts';
import { openOptimizer } from './stored-optimizer.ts';
import { torchFileBytes, writeTorchFile } from './torch-file-writer.ts';

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

interface Described {
  readonly description: CheckpointDescription;
  readonly asked: string[];
  readonly read: PartReader;
}

function checkpoint(changes: Partial<CheckpointDescription> = {}): Described {
  const asked: string[] = [];
  return {
    description: {
      parameters: PARAMETERS,
      optimizer: ADAM,
      iter: 4,
      config: { name: 'run', optimizer: { kind: 'adam', betas: [0.9, 0.999] }, strategy: null, large: true },
      extra: { samples: 2 ** 33 },
      ...changes,
    },
    asked,
    async *read(name, part) {
      asked.push(`${name} ${part}`);
      const bytes = new Uint8Array(contents(name, part).buffer);
      yield bytes.subarray(0, 8);
      yield bytes.subarray(8);
    },
  };
}

const treeOf = ({ description, read }: Described) => contentTree(checkpointContent(description, read));

/** Written as a full file, of the size that was known ahead, and opened again. */
async function roundTrip(spec: Described): Promise<StoredCheckpoint> {
  const sink = memorySink();
  const bytes = await writeTorchFile(treeOf(spec), sink);
  expect(sink.bytes().length).toBe(bytes);
  expect(torchFileBytes(treeOf(spec))).toBe(bytes);
  return openCheckpoint({ file: bytesSource('step-000004.ckpt', sink.bytes()) });
}

describe('what is written', () => {
  test('comes back: weights, state, iter, config, samples', async () => {
    const stored = await roundTrip(checkpoint());
    const optimizer = (await openOptimizer(stored))!;
    expect([...stored.model.keys()]).toEqual(PARAMETERS.map(({ name }) => name));
    for (const { name, shape } of PARAMETERS) {
      const elements = shape.reduce((a, b) => a * b);
      expect(stored.model.get(name)).toMatchObject({ dtype: 'float32', shape });
      expect(await readParameter(stored, name, 0, elements)).toEqual(contents(name, 'param'));
      expect(optimizer.parts(name)).toEqual(['step', 'exp_avg', 'exp_avg_sq']);
      expect(stored.optimizers[0].state.get(name)!.get('step')).toMatchObject({ dtype: 'float32', shape: [] });
      expect(await optimizer.step(name)).toBe(4);
      for (const part of ['exp_avg', 'exp_avg_sq'] as const)
        expect(await optimizer.readState(name, part, 0, elements)).toEqual(contents(name, part));
    }
    expect([iterOf(stored), samplesOf(stored)]).toEqual([4, 2 ** 33]);
    expect(configOf(stored)).toEqual(checkpoint().description.config);
  });

  test('tensors are asked for in the file’s order, each once: all weights, then the state of each', async () => {
    const spec = checkpoint();
    await writeTorchFile(treeOf(spec), memorySink());
    const names = PARAMETERS.map(({ name }) => name);
    expect(spec.asked).toEqual([
      ...names.map((name) => `${name} param`),
      ...names.flatMap((name) => [`${name} exp_avg`, `${name} exp_avg_sq`]),
    ]);
  });

  test('its size asks for nothing', () => {
    const spec = checkpoint();
    torchFileBytes(treeOf(spec));
    expect(spec.asked).toEqual([]);
  });

  test.each<[string, Partial<CheckpointOptimizer>, string[]]>([
    ['sgd with momentum', { kind: 'sgd', momentum: 0.9, nesterov: true }, ['momentum_buffer']],
    ['sgd without has no state', { kind: 'sgd', momentum: 0 }, []],
    ['before the first step there is none', { step: 0 }, []],
    ['adamw', { kind: 'adamw' }, ['step', 'exp_avg', 'exp_avg_sq']],
  ])('%s', async (_, changes, parts) => {
    const optimizer = (await openOptimizer(await roundTrip(checkpoint({ optimizer: { ...ADAM, ...changes } }))))!;
    expect(optimizer.names).toHaveLength(parts.length === 0 ? 0 : 3);
    for (const name of optimizer.names) expect(optimizer.parts(name)).toEqual(parts);
    const [{ names, stored }] = optimizer.groups;
    expect(names).toEqual(PARAMETERS.map(({ name }) => name));
    if (changes.kind === 'sgd')
      expect([stored.get('momentum'), stored.get('dampening')]).toEqual([changes.momentum, 0]);
    else expect(stored.get('decoupled_weight_decay')).toBe(changes.kind === 'adamw');
  });

  test('a frozen parameter has no state, a tied one is stored once', async () => {
    const parameters = [
      { ...PARAMETERS[0], frozen: true },
      PARAMETERS[1],
      { name: 'head.weight', shape: [5, 3], tiedTo: 'embedding.weight' },
    ];
    const spec = checkpoint({ parameters });
    const stored = await roundTrip(spec);
    const optimizer = (await openOptimizer(stored))!;
    expect(optimizer.names).toEqual(['layer.bias']);
    expect(optimizer.groups.map(({ names }) => names)).toEqual([['embedding.weight', 'layer.bias']]);
    expect(stored.model.get('head.weight')).toBe(stored.model.get('embedding.weight'));
    expect(spec.asked.filter((ask) => ask.includes('param'))).toEqual(['embedding.weight param', 'layer.bias param']);
  });

  test('without an optimizer', async () => {
    const { optimizers, model } = await roundTrip(checkpoint({ optimizer: null }));
    expect(optimizers).toEqual([]);
    expect(model.size).toBe(3);
  });

  test('an extra key that is taken is an error', () => {
    expect(() => treeOf(checkpoint({ extra: { model: 1 } }))).toThrow(/already has a key model/);
  });
});

describe('5: Fabric’s own files', () => {
  const open = (name: string) => {
    const path = new URL(`../testdata/demo-transformer/${name}`, import.meta.url);
    return openCheckpoint({ file: bytesSource(name, readFileSync(path)) });
  };

  test.each(['fabric_single_step5.ckpt', 'fabric_fsdp_full_ws1'])(
    '%s: state of all parameters, by number or by name, is by name here',
    async (name) => {
      const stored = await open(name);
      const optimizer = (await openOptimizer(stored))!;
      expect(stored.model.size).toBe(67);
      expect([iterOf(stored), configOf(stored), stored.rest.get('note')]).toEqual([5, null, 'café']);
      expect(optimizer.key).toBe('optimizer');
      expect([...optimizer.names].sort()).toEqual([...stored.model.keys()].sort());
      for (const parameter of optimizer.names) {
        expect(optimizer.parts(parameter)).toContain('exp_avg');
        expect(await optimizer.step(parameter)).toBe(5);
      }
    },
  );

  test('our param_group has the options that torch wrote, in its order', async () => {
    const optionsOf = async (stored: StoredCheckpoint) => {
      const options = [...(await openOptimizer(stored))!.groups[0].stored].filter(([name]) => name !== 'params');
      return JSON.stringify(options.map(([name, value]) => [name, toPlain(value)]));
    };
    expect(await optionsOf(await roundTrip(checkpoint()))).toBe(
      await optionsOf(await open('fabric_single_step5.ckpt')),
    );
  });

  test('a file of weights alone', async () => {
    const stored = await open('init.pt');
    expect([iterOf(stored), stored.optimizers]).toEqual([null, []]);
  });
});
