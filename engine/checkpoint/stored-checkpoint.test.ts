import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { type ByteSource, bytesSource } from './byte-source.ts';
import { compareNames, compareOptimizerState, refuseDifferences } from './compare-names.ts';
import { convertCheckpoint } from './convert-checkpoint.ts';
import { memorySink } from './fixtures/memory-sink.ts';
import { openCheckpoint } from './open-checkpoint.ts';
import { PyOrderedDict, type PyValue, tuple } from './python-value.ts';
import {
  configOf,
  isStoredTensor,
  iterOf,
  listTensors,
  readParameter,
  type StoredCheckpoint,
  samplesOf,
} from './stored-checkpoint.ts';
import { openOptimizer, type StoredOptimizer } from './stored-optimizer.ts';
import { type TensorToWrite, tensorToWrite, writeTorchFile } from './torch-file-writer.ts';

const REFERENCE = new URL('../testdata/demo-transformer/', import.meta.url);
const json = (name: string) => JSON.parse(readFileSync(new URL(name, REFERENCE), 'utf8')) as Record<string, number[]>;

function openReal(name: string): Promise<StoredCheckpoint> {
  const at = new URL(name, REFERENCE);
  if (/dcp|sharded/.test(name)) {
    const files = readdirSync(at).map(
      (file) => [file, bytesSource(file, readFileSync(`${at.pathname}/${file}`))] as const,
    );
    return openCheckpoint({ folder: name, files: new Map(files) });
  }
  return openCheckpoint({ file: bytesSource(name, readFileSync(at)) });
}

async function optimizerOf(checkpoint: StoredCheckpoint): Promise<StoredOptimizer> {
  const optimizer = await openOptimizer(checkpoint);
  if (!optimizer) throw new Error('no optimizer');
  return optimizer;
}

const elements = (shape: readonly number[]) => shape.reduce((product, size) => product * size, 1);
const whole = (checkpoint: StoredCheckpoint, name: string) =>
  readParameter(checkpoint, name, 0, elements(checkpoint.model.get(name)!.shape));

/** Without vitest, which compares arrays element by element and takes seconds. */
const sameBits = (a: Float32Array, b: Float32Array): boolean =>
  Buffer.compare(
    new Uint8Array(a.buffer, a.byteOffset, a.byteLength),
    new Uint8Array(b.buffer, b.byteOffset, b.byteLength),
  ) === 0;

/** Every parameter and every part of its state, compared bit by bit. */
async function expectEqual(a: StoredCheckpoint, b: StoredCheckpoint): Promise<void> {
  expect([...a.model.keys()]).toEqual([...b.model.keys()]);
  const [one, other] = [await optimizerOf(a), await optimizerOf(b)];
  expect(one.names.toSorted()).toEqual(other.names.toSorted());
  expect(one.groups).toEqual(other.groups);
  for (const [name, { shape }] of a.model) {
    expect(sameBits(await whole(a, name), await whole(b, name)), name).toBe(true);
    expect(one.parts(name)).toEqual(other.parts(name));
    expect(await one.step(name)).toBe(await other.step(name));
    for (const part of ['exp_avg', 'exp_avg_sq']) {
      const [left, right] = [one, other].map((optimizer) => optimizer.readState(name, part, 0, elements(shape)));
      expect(sameBits(await left, await right), `${part} of ${name}`).toBe(true);
    }
  }
}

describe('every real checkpoint', () => {
  test.each([
    ['fabric_single_step5.ckpt', 'full', 'optimizer', 5],
    ['fabric_fsdp_full_ws1', 'full', 'optimizer', 5],
    ['fabric_fsdp_sharded_ws1', 'sharded', 'optimizer', 5],
    ['dcp_fsdp1_ws2', 'sharded', 'optimizer_0', 5],
    ['dcp_fsdp2_ws2', 'sharded', 'optimizer', null],
  ])('%s: kind, keys, options, steps', async (name, kind, key, iter) => {
    const checkpoint = await openReal(name);
    expect([checkpoint.kind, checkpoint.model.size, iterOf(checkpoint)]).toEqual([kind, 67, iter]);
    const optimizer = await optimizerOf(checkpoint);
    expect(optimizer.key).toBe(key);
    expect(optimizer.groups).toHaveLength(1);
    expect(optimizer.groups[0]).toMatchObject({
      kinds: ['adam'],
      names: [...checkpoint.model.keys()],
      options: { lr: 0.001, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0, foreach: null },
      filled: [],
      unknown: [],
      unsupported: [],
    });
    for (const parameter of checkpoint.model.keys()) {
      expect(optimizer.parts(parameter).toSorted()).toEqual(['exp_avg', 'exp_avg_sq', 'step']);
      expect(await optimizer.step(parameter)).toBe(5);
    }
    await checkpoint.verify();
  });

  test('9.4, 9.5, 9.12: the same training in the full and in the sharded form, bit for bit', async () => {
    await expectEqual(await openReal('fabric_fsdp_full_ws1'), await openReal('fabric_fsdp_sharded_ws1'));
  });

  test('9.10: two ranks of FSDP1 and of FSDP2, bit for bit', async () => {
    await expectEqual(await openReal('dcp_fsdp1_ws2'), await openReal('dcp_fsdp2_ws2'));
  });

  test('one device: the sums that PyTorch took of its weights; FSDP’s are the same training within rounding', async () => {
    const sums = json('fabric_single_step5.sums.json');
    const single = await openReal('fabric_single_step5.ckpt');
    const fsdp = await openReal('fabric_fsdp_full_ws1');
    expect(Object.keys(sums)).toEqual([...single.model.keys()]);
    for (const [name, [sum, squares]] of Object.entries(sums)) {
      const values = await whole(single, name);
      expect(values.reduce((total, value) => total + value, 0)).toBeCloseTo(sum, 9);
      expect(values.reduce((total, value) => total + value * value, 0)).toBeCloseTo(squares, 9);
      // The key's bias has no true gradient; Adam amplifies the noise (law 3).
      if (name.endsWith('in_proj_bias')) continue;
      const other = await whole(fsdp, name);
      expect(values.every((value, i) => Math.abs(value - other[i]) < 1e-4)).toBe(true);
    }
  });

  test('state by number (one device) and by name (FSDP) mean the same parameters', async () => {
    const [byNumber, byName] = [await openReal('fabric_single_step5.ckpt'), await openReal('fabric_fsdp_full_ws1')];
    const [one, other] = [await optimizerOf(byNumber), await optimizerOf(byName)];
    for (const name of byNumber.model.keys()) {
      const count = elements(byNumber.model.get(name)!.shape);
      const [a, b] = [
        await one.readState(name, 'exp_avg_sq', 0, count),
        await other.readState(name, 'exp_avg_sq', 0, count),
      ];
      expect(
        a.every((value, i) => Math.abs(value - b[i]) < 1e-6),
        name,
      ).toBe(true);
    }
  });

  test('init.pt and init.safetensors hold the same model and nothing else', async () => {
    const [torch, safetensors] = [await openReal('init.pt'), await openReal('init.safetensors')];
    expect([torch.kind, safetensors.kind]).toEqual(['full', 'safetensors']);
    expect([torch.optimizers, safetensors.optimizers, iterOf(torch)]).toEqual([[], [], null]);
    for (const name of torch.model.keys())
      expect(sameBits(await whole(torch, name), await whole(safetensors, name))).toBe(true);
  });

  test('a rank reads only what it asks for', async () => {
    const name = 'fabric_fsdp_full_ws1';
    let readBytes = 0;
    const inner = bytesSource(name, readFileSync(new URL(name, REFERENCE)));
    const counting = (offset: number, length: number) => {
      readBytes += length;
      return inner.read(offset, length);
    };
    const checkpoint = await openCheckpoint({ file: { ...inner, read: counting } });
    await readParameter(checkpoint, 'embedding.weight', 0, 1);
    const before = readBytes;
    const rows = await readParameter(checkpoint, 'embedding.weight', 33, 64);
    expect(readBytes - before).toBe(64 * 4);
    expect(rows).toEqual((await whole(checkpoint, 'embedding.weight')).slice(33, 97));
  });

  test('the listing names every tensor with its chunks by rank', async () => {
    const listed = listTensors(await openReal('dcp_fsdp1_ws2'));
    expect(listed).toHaveLength(67 * 4);
    expect(listed[0]).toEqual({
      name: 'embedding.weight',
      dtype: 'float32',
      shape: [97, 32],
      elements: 3104,
      bytes: 12416,
      parts: [
        { file: '__0_0.distcp', rank: 0, offsets: [0, 0], sizes: [49, 32] },
        { file: '__1_0.distcp', rank: 1, offsets: [49, 0], sizes: [48, 32] },
      ],
    });
    expect(listed.map(({ name }) => name)).toContain('optimizer_0.state.decoder.bias.exp_avg');
  });
});

const floats = (...values: number[]): TensorToWrite =>
  tensorToWrite('float32', [values.length], () => [new Uint8Array(Float32Array.from(values).buffer)]);
const scalar = (value: number) => tensorToWrite('float32', [], () => [new Uint8Array(Float32Array.of(value).buffer)]);
const dict = (entries: Record<string, PyValue>): Map<PyValue, PyValue> => new Map(Object.entries(entries));

async function written(value: Record<string, PyValue>): Promise<StoredCheckpoint> {
  const sink = memorySink();
  await writeTorchFile(dict(value), sink);
  return openCheckpoint({ file: bytesSource('made.ckpt', sink.bytes()) });
}

const MODEL = () =>
  new PyOrderedDict([
    ['a', floats(1, 2)],
    ['b', floats(3)],
    ['c', floats(4, 5, 6)],
  ]);
const ADAM_OPTIONS = { lr: 0.5, betas: tuple(0.9, 0.99), eps: 1e-6, weight_decay: 0.1, amsgrad: false };
const adamState = (size: number) =>
  dict({ step: scalar(3), exp_avg: floats(...Array(size).fill(size)), exp_avg_sq: floats(...Array(size).fill(1)) });

describe('optimizers as users and versions of torch leave them', () => {
  test('9.51: options of an older torch are filled, of a newer one named, a scheduler’s ignored', async () => {
    const group = { ...ADAM_OPTIONS, initial_lr: 1, brand_new: true, params: [0, 1, 2] };
    const optimizer = await optimizerOf(
      await written({ model: MODEL(), opt: dict({ state: new Map(), param_groups: [dict(group)] }) }),
    );
    expect(optimizer.key).toBe('opt');
    expect(optimizer.groups[0]).toMatchObject({
      kinds: ['adam', 'adamw'],
      unknown: ['brand_new'],
      names: ['a', 'b', 'c'],
    });
    expect(optimizer.groups[0].options).toMatchObject({ lr: 0.5, betas: [0.9, 0.99], eps: 1e-6, weightDecay: 0.1 });
    expect(optimizer.groups[0].filled).toEqual([
      'maximize',
      'foreach',
      'capturable',
      'differentiable',
      'fused',
      'decoupled_weight_decay',
    ]);
  });

  test('SGD, what it does not compute, and an optimizer that is none of ours', async () => {
    const sgd = { lr: floats(0.25), momentum: 0.9, dampening: 0.5, weight_decay: 0, nesterov: true, params: ['a'] };
    const made = (group: Record<string, PyValue>) =>
      written({ model: MODEL(), o: dict({ state: new Map(), param_groups: [dict(group)] }) }).then(optimizerOf);
    const [group] = (await made(sgd)).groups;
    expect(group).toMatchObject({ kinds: ['sgd'], unsupported: ['dampening'], names: ['a'] });
    expect(group.options).toMatchObject({ lr: 0.25, momentum: 0.9, nesterov: true });
    expect((await made({ lr: 1, alpha: 0.9, params: [] })).groups[0].kinds).toEqual([]);
    expect((await made({ ...ADAM_OPTIONS, amsgrad: true, params: [] })).groups[0].unsupported).toEqual(['amsgrad']);
    const decoupled = { ...ADAM_OPTIONS, decoupled_weight_decay: true, params: [] };
    expect((await made(decoupled)).groups[0].kinds).toEqual(['adamw']);
  });

  test('numbers count through several groups, so the groups of the run are needed', async () => {
    const state = new Map<PyValue, PyValue>([
      [0, adamState(3)],
      [1, adamState(2)],
      [2, adamState(1)],
    ]);
    const groups = [dict({ ...ADAM_OPTIONS, params: [0] }), dict({ ...ADAM_OPTIONS, lr: 2, params: [1, 2] })];
    const checkpoint = await written({ model: MODEL(), o: dict({ state, param_groups: groups }) });
    await expect(openOptimizer(checkpoint)).rejects.toThrow(/3 parameters in 2 group\(s\) of 1,2/);
    await expect(openOptimizer(checkpoint, { groupNames: [['a', 'b'], ['c']] })).rejects.toThrow(/cannot be told/);
    const optimizer = await openOptimizer(checkpoint, { groupNames: [['c'], ['a', 'b']] });
    expect(optimizer!.groups.map(({ names, options }) => [names, options.lr])).toEqual([
      [['c'], 0.5],
      [['a', 'b'], 2],
    ]);
    expect([...(await optimizer!.readState('c', 'exp_avg', 0, 3))]).toEqual([3, 3, 3]);
  });

  test('a tied parameter counts once', async () => {
    const model = MODEL();
    model.set('tied', model.get('a')!);
    const group = dict({ ...ADAM_OPTIONS, params: [0, 1, 2] });
    const state = new Map<PyValue, PyValue>([[2, adamState(3)]]);
    const checkpoint = await written({ model, o: dict({ state, param_groups: [group] }) });
    expect(checkpoint.model.get('tied')).toBe(checkpoint.model.get('a'));
    const optimizer = await optimizerOf(checkpoint);
    expect(optimizer.names).toEqual(['c']);
    expect(await optimizer.step('c')).toBe(3);
    expect(await optimizer.step('a')).toBeNull();
  });

  test('9.53: a missing part, a wrong shape, an unknown name: the parameter is named', async () => {
    const group = dict({ ...ADAM_OPTIONS, params: ['a', 'b', 'c'] });
    const made = (state: Record<string, PyValue>) =>
      written({ model: MODEL(), o: dict({ state: dict(state), param_groups: [group] }) });
    const optimizer = await optimizerOf(await made({ a: dict({ step: 4, exp_avg: floats(1) }) }));
    expect(await optimizer.step('a')).toBe(4);
    await expect(optimizer.readState('a', 'exp_avg_sq', 0, 2)).rejects.toThrow(/state of a has no exp_avg_sq/);
    await expect(optimizer.readState('b', 'exp_avg', 0, 1)).rejects.toThrow(/state of b has no exp_avg/);
    await expect(optimizer.readState('a', 'exp_avg', 0, 1)).rejects.toThrow(/exp_avg of a has shape \[1\]/);
    await expect(openOptimizer(await made({ z: dict({}) }))).rejects.toThrow(/state for z/);
  });

  test('9.54: an optimizer without state', async () => {
    const sgd = dict({ lr: 1, momentum: 0, dampening: 0, params: [0, 1, 2] });
    const optimizer = await optimizerOf(
      await written({ model: MODEL(), o: dict({ state: new Map(), param_groups: [sgd] }) }),
    );
    expect([optimizer.names, optimizer.groups[0].kinds]).toEqual([[], ['sgd']]);
  });

  test('two optimizers are refused where one is loaded, and listed', async () => {
    const optimizer = () => dict({ state: new Map(), param_groups: [dict({ ...ADAM_OPTIONS, params: [] })] });
    const checkpoint = await written({ model: MODEL(), generator: optimizer(), judge: optimizer() });
    await expect(openOptimizer(checkpoint)).rejects.toThrow(/2 optimizers \(generator,judge\)/);
    const trainer = await written({ state_dict: MODEL(), optimizer_states: [optimizer()], global_step: 9 });
    expect((await optimizerOf(trainer)).key).toBe('optimizer_states.0');
    expect(iterOf(trainer)).toBe(9);
  });

  test('iter, samples, config and the rest', async () => {
    const checkpoint = await written({
      model: MODEL(),
      iter: 5,
      samples: 80,
      config: dict({ name: 'x' }),
      note: 'café',
    });
    expect([iterOf(checkpoint), samplesOf(checkpoint), configOf(checkpoint)]).toEqual([5, 80, { name: 'x' }]);
    expect(checkpoint.rest.get('note')).toBe('café');
    const odd = await written({ model: MODEL(), iter: -1, samples: 'many' });
    expect([iterOf(odd), samplesOf(odd), configOf(odd)]).toEqual([null, null, null]);
  });
});

describe('tensors among the other keys', () => {
  test('of a full file, and of meta.pt: found, and kept through every form that has other keys', async () => {
    const from = await written({ model: MODEL(), rng: dict({ states: [floats(7, 8)] }), iter: 3 });
    const files = new Map<string, ByteSource>();
    const file = async (name: string, write: (sink: ReturnType<typeof memorySink>) => Promise<unknown>) => {
      const sink = memorySink();
      await write(sink);
      files.set(name, bytesSource(name, sink.bytes()));
    };
    await convertCheckpoint(from, { kind: 'sharded', ranks: 2, saveId: 'x', file });
    const sharded = await openCheckpoint({ folder: 'run', files });
    const sink = memorySink();
    await convertCheckpoint(sharded, { kind: 'full', sink });
    const full = await openCheckpoint({ file: bytesSource('full', sink.bytes()) });
    for (const { rest } of [from, sharded, full]) {
      const states = (rest.get('rng') as Map<PyValue, PyValue>).get('states') as PyValue[];
      if (!isStoredTensor(states[0])) throw new Error('no tensor');
      expect([...new Float32Array((await states[0].readBytes(0, 2)).buffer)]).toEqual([7, 8]);
    }
    await sharded.verify();
  });
});

describe('names compared', () => {
  const expected = [
    { name: 'a', shape: [2] },
    { name: 'c', shape: [2] },
    { name: 'd', shape: [9] },
    { name: 'e', shape: [2], tiedTo: 'a' },
  ];

  test('9.52: wrong shapes, then missing and unexpected, are counted and three of each named; not strict forgives the first two', async () => {
    const comparison = compareNames(await written({ model: MODEL() }), expected);
    expect(comparison).toMatchObject({ missing: ['d'], unexpected: ['b'] });
    expect(comparison.wrongShapes).toEqual([{ name: 'c', expected: [2], found: [3] }]);
    expect(() => refuseDifferences('x.ckpt', comparison, true)).toThrow(
      /^x\.ckpt does not fit this run: 1 of another shape \(c is \[3\] and should be \[2\]\); 1 missing \(d\); 1 unexpected \(b\)\.$/,
    );
    expect(() => refuseDifferences('x.ckpt', comparison, false)).toThrow(
      /^x\.ckpt does not fit this run: 1 of another/,
    );
    const many = { ...comparison, wrongShapes: [], missing: ['a', 'b', 'c', 'd', 'e'] };
    expect(() => refuseDifferences('x.ckpt', many, true)).toThrow(/run: 5 missing \(a, b, c, and 2 more\);/);
    expect(() => refuseDifferences('x.ckpt', { ...comparison, wrongShapes: [] }, false)).not.toThrow();
    expect(() => refuseDifferences('x.ckpt', { ...comparison, wrongShapes: [] }, true)).toThrow(/checkpoint\.strict/);
  });

  test('9.4: optimizer state that a parameter lacks is an error by name', async () => {
    const group = dict({ ...ADAM_OPTIONS, params: ['a', 'b', 'c'] });
    const state = dict({ a: adamState(2), b: dict({ step: scalar(1) }) });
    const checkpoint = await written({ model: MODEL(), o: dict({ state, param_groups: [group] }) });
    const model = [
      { name: 'a', shape: [2] },
      { name: 'b', shape: [1] },
      { name: 'c', shape: [3], frozen: true },
    ];
    const comparison = compareOptimizerState(compareNames(checkpoint, model), await optimizerOf(checkpoint), model, [
      'step',
      'exp_avg',
    ]);
    expect(comparison.missingState).toEqual(['b: exp_avg']);
    expect(() => refuseDifferences('x', comparison, true)).toThrow(/1 without state \(b: exp_avg\)/);
  });
});
