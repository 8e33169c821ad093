import { describe, expect, test } from 'vitest';
import { bytesSource } from '../checkpoint/byte-source.ts';
import { memorySink } from '../checkpoint/fixtures/memory-sink.ts';
import { openCheckpoint } from '../checkpoint/open-checkpoint.ts';
import { PyOrderedDict, type PyValue, tuple } from '../checkpoint/python-value.ts';
import { tensorToWrite, writeTorchFile } from '../checkpoint/torch-file-writer.ts';
import { parseConfig } from '../config.ts';
import { buildModel } from '../model/build-model.ts';
import { MASK_VERSION } from '../ops/dropout/dropout-mask.ts';
import { elementsOf } from '../ops/graph.ts';
import { resumeFrom } from './start-state.ts';

const dict = (entries: Record<string, PyValue>): Map<PyValue, PyValue> => new Map(Object.entries(entries));
const ones = (shape: readonly number[]) =>
  tensorToWrite('float32', shape, () => [new Uint8Array(new Float32Array(elementsOf(shape)).fill(1).buffer)]);

const ADAM = {
  lr: 0.001,
  betas: tuple(0.9, 0.999),
  eps: 1e-8,
  weight_decay: 0,
  amsgrad: false,
  maximize: false,
  foreach: null,
  capturable: false,
  differentiable: false,
  fused: null,
  decoupled_weight_decay: false,
};
const SGD = {
  lr: 0.001,
  momentum: 0,
  dampening: 0,
  weight_decay: 0,
  nesterov: false,
  maximize: false,
  foreach: null,
  differentiable: false,
  fused: null,
};
const kind = 'demo-transformer';
const model = { kind, vocabSize: 5, ninp: 2, nhead: 1, nhid: 2, nlayers: 1 };

interface Made {
  readonly optimizer: 'adam' | 'sgd';
  /** Options of the one param_group, over those that torch writes; undefined leaves one out. */
  readonly options?: Readonly<Record<string, PyValue | undefined>>;
  /** Updates of a parameter, by its position. */
  readonly step?: (index: number) => number;
  readonly strict?: boolean;
  /** Parameters that the model has not. */
  readonly more?: readonly string[];
  readonly iter?: number;
  /** Dropout of the run to come, and the other keys of the checkpoint. */
  readonly dropout?: number;
  readonly rest?: Readonly<Record<string, PyValue>>;
}

/** The start of a run from a checkpoint as torch would have written it. */
async function resumed({
  optimizer,
  options = {},
  step = () => 3,
  strict = true,
  more = [],
  iter,
  dropout = 0,
  rest = {},
}: Made) {
  const of = { ...model, dropout };
  const config = parseConfig({
    model: of,
    optimizer: { kind: optimizer },
    checkpoint: { resume: 'made.ckpt', strict },
  });
  const built = buildModel(config.model, null);
  const state = built.parameters.map(({ name, shape }, i): [PyValue, PyValue] => [
    name,
    dict({ step: step(i), exp_avg: ones(shape), exp_avg_sq: ones(shape) }),
  ]);
  const group = {
    ...(optimizer === 'adam' ? ADAM : SGD),
    ...options,
    params: built.parameters.map(({ name }) => name),
  };
  const given = Object.entries(group).flatMap(([name, value]): [PyValue, PyValue][] =>
    value === undefined ? [] : [[name, value]],
  );
  const weights = built.parameters.map(({ name, shape }): [PyValue, PyValue] => [name, ones(shape)]);
  const sink = memorySink();
  const tree = dict({
    model: new PyOrderedDict([...weights, ...more.map((name): [PyValue, PyValue] => [name, ones([2])])]),
    optimizer: dict({ state: new Map(optimizer === 'adam' ? state : []), param_groups: [new Map(given)] }),
    ...(optimizer === 'sgd' || iter !== undefined ? { iter: iter ?? 3 } : {}),
    ...rest,
  });
  await writeTorchFile(tree, sink);
  return resumeFrom(await openCheckpoint({ file: bytesSource('made.ckpt', sink.bytes()) }), config, built);
}

test('masks of another version are told where the run drops, and only of a run of this engine that dropped', async () => {
  const dropped = { config: dict({ model: dict({ dropout: 0.2 }) }) };
  const said = [
    "it was trained with dropout's masks of version 1 and goes on with those of version 2, which drop other elements",
  ];
  const notesOf = async (dropout: number, rest: Readonly<Record<string, PyValue>>) =>
    (await resumed({ optimizer: 'adam', iter: 3, dropout, rest })).notes;
  expect(await notesOf(0.2, dropped)).toEqual(said);
  expect(await notesOf(0, dropped)).toEqual([]);
  expect(await notesOf(0.2, { ...dropped, dropoutMasks: MASK_VERSION })).toEqual([]);
  expect(await notesOf(0.2, {})).toEqual([]);
});

describe('options of the optimizer that was saved', () => {
  test('as torch writes them, they are not spoken of', async () => {
    expect((await resumed({ optimizer: 'adam', iter: 3 })).notes).toEqual([]);
    expect((await resumed({ optimizer: 'sgd' })).notes).toEqual([]);
  });

  test('51: unknown ones, and those that are missing, are told by name, and training goes on', async () => {
    const options = { brand_new: true, another: 1, fused: undefined, decoupled_weight_decay: undefined };
    const { notes, step } = await resumed({ optimizer: 'adam', options, iter: 3 });
    expect(step).toBe(3);
    expect(notes).toEqual([
      'optimizer: options that are not known here: brand_new, another',
      'optimizer: options that it lacks, taken as by default: fused, decoupled_weight_decay',
    ]);
  });

  test.each([
    ['adam', 'amsgrad', true],
    ['adam', 'maximize', true],
    ['sgd', 'maximize', true],
    ['sgd', 'dampening', 0.5],
  ] as const)(
    '%s with %s, which is not computed here, is refused; not strict, it is told',
    async (optimizer, name, value) => {
      const options = { [name]: value };
      await expect(resumed({ optimizer, options })).rejects.toMatchObject({
        code: 'bad-data',
        message: expect.stringMatching(
          new RegExp(`^optimizer was trained with ${name}, .*checkpoint\\.strict to false`),
        ),
      });
      const { notes } = await resumed({ optimizer, options, strict: false });
      expect(notes).toContain(`optimizer: goes on without ${name}`);
    },
  );

  test('others than the run’s are told', async () => {
    const options = { lr: 0.5, betas: tuple(0.8, 0.9), eps: 1e-6, weight_decay: 0.1 };
    expect((await resumed({ optimizer: 'adam', options, iter: 3 })).notes).toEqual([
      'lr was 0.5 and is 0.001',
      'weightDecay was 0.1 and is 0',
      'betas was [0.8,0.9] and is [0.9,0.999]',
      'eps was 0.000001 and is 1e-8',
    ]);
  });
});

describe('updates', () => {
  test('are those of the optimizer, whatever iter says; without iter they are the steps', async () => {
    const { step, optimizer } = await resumed({ optimizer: 'adam', iter: 7 });
    expect([step, optimizer.updates]).toEqual([7, 3]);
    const { step: taken, notes } = await resumed({ optimizer: 'adam' });
    expect([taken, notes]).toEqual([3, ["it does not say how many steps are done: taken from the optimizer's, 3"]]);
  });

  test.each([true, false])(
    'of parameters that were updated unequally often: refused, with both named (strict: %s)',
    async (strict) => {
      await expect(resumed({ optimizer: 'adam', step: (i) => (i === 1 ? 4 : 3), strict })).rejects.toMatchObject({
        code: 'bad-data',
        message: expect.stringMatching(/^made\.ckpt: embedding\.weight had 3 updates and \S+ 4\. .*init\.from/),
      });
    },
  );
});

test('52: what the model has not is counted and named, and left aside where strict is off', async () => {
  const more = ['other.weight', 'other.bias'];
  await expect(resumed({ optimizer: 'adam', iter: 3, more })).rejects.toThrow(
    /2 unexpected \(other\.weight, other\.bias\).*checkpoint\.strict to false/,
  );
  const { notes } = await resumed({ optimizer: 'adam', iter: 3, more, strict: false });
  expect(notes).toEqual(['2 unexpected, left aside: other.weight, other.bias']);
});
