import { describe, expect, it } from 'vitest';
import { checkConfig, GPT2_VOCAB_SIZE, parseConfig } from './config.ts';
import { configHints } from './config-hints.ts';

const problems = (config: object) => checkConfig(config).problems;

describe('a vocabulary for GPT-2’s tokens', () => {
  const gpt2 = { kind: 'gpt2', vocabSize: GPT2_VOCAB_SIZE - 1 };
  const tokens = { kind: 'moby-dick', tokenizer: 'gpt2' };

  it('has a row for each of them', () => {
    expect(problems({ model: gpt2, data: tokens })).toMatchObject([
      {
        path: 'model.vocabSize',
        message: expect.stringMatching(/50256 is fewer .* 50257 or more, leave it out, or set/),
      },
    ]);
  });

  it('may have more, or follow from the data, and other tokens may have fewer', () => {
    for (const vocabSize of [GPT2_VOCAB_SIZE, 128_256, null])
      expect(problems({ model: { ...gpt2, vocabSize }, data: tokens })).toEqual([]);
    expect(problems({ model: gpt2, data: { kind: 'moby-dick' } })).toEqual([]);
    expect(problems({ model: gpt2, data: { kind: 'batches', path: 'x' } })).toEqual([]);
  });
});

describe('numbers that float32 does not have', () => {
  it.each([
    [{ eps: 1e-300 }, 'optimizer.eps', /1e-300 is 0 in float32/],
    [{ lr: 1e39 }, 'optimizer.lr', /1e\+39 is infinite in float32/],
    [{ groups: [{ match: 'bias', lr: 1e39 }] }, 'optimizer.groups.0.lr', /is infinite in float32/],
  ])('%j is refused', (settings, path, says) => {
    expect(problems({ optimizer: { kind: 'adam', ...settings } })).toMatchObject([
      { path, message: expect.stringMatching(says) },
    ]);
  });
});

describe('a model that would take too long to plan', () => {
  const refused: [config: object, path: string, says: RegExp][] = [
    [
      { model: { kind: 'llama', numHiddenLayers: 24 }, trainer: { accumulateGradBatches: 4096 } },
      'model.numHiddenLayers',
      /24 blocks, times trainer.accumulateGradBatches 4096: .* lower model.numHiddenLayers or trainer.accumulateGradBatches/,
    ],
    [
      { model: { kind: 'demo-transformer', nlayers: 1024 }, trainer: { accumulateGradBatches: 2 } },
      'model.nlayers',
      /2048 blocks, times/,
    ],
    [
      { model: { kind: 'gpt2', nLayer: 96, nHead: 96, nEmbd: 12_288 } },
      'model.nEmbd',
      /about 174 billion parameters: .* lower model.nEmbd$/,
    ],
    [
      {
        model: { kind: 'llama', hiddenSize: 65_536, numAttentionHeads: 64, intermediateSize: 1_048_576, vocabSize: 9 },
      },
      'model.hiddenSize',
      /billion parameters/,
    ],
    [{ model: { kind: 'demo-transformer', ninp: 65_536, nhid: 1_048_576 } }, 'model.ninp', /billion parameters/],
  ];

  it.each(refused)('is refused with the settings that make it so large: %o', (config, path, says) => {
    expect(problems(config)).toMatchObject([{ path, message: expect.stringMatching(says) }]);
  });

  it('what fills eight GPUs is not', () => {
    const llama70b = {
      kind: 'llama',
      hiddenSize: 8192,
      intermediateSize: 28_672,
      numHiddenLayers: 80,
      numAttentionHeads: 64,
      numKeyValueHeads: 8,
      vocabSize: 128_256,
    };
    expect(problems({ model: llama70b })).toEqual([]);
    expect(problems({ model: { kind: 'demo-transformer', nlayers: 1024 } })).toEqual([]);
  });
});

describe('the hint on Adam’s eps', () => {
  const eps = (optimizer: object, precision = '16-true') => configHints(parseConfig({ precision, optimizer }));

  it('is given where float16 does not have it', () => {
    for (const kind of ['adam', 'adamw'])
      expect(eps({ kind })).toMatchObject([
        { path: 'optimizer.eps', message: expect.stringMatching(/Set optimizer.eps/) },
      ]);
  });

  it('is not given elsewhere', () => {
    expect(eps({ kind: 'adam', eps: 1e-4 })).toEqual([]);
    expect(eps({ kind: 'sgd' })).toEqual([]);
    for (const precision of ['32-true', '16-mixed']) expect(eps({ kind: 'adam' }, precision)).toEqual([]);
  });
});

describe('the hint on updates that wait with offload', () => {
  const said = (settings: object) => configHints(parseConfig({ strategy: 'fsdp_cpu_offload', ...settings }))[0].message;

  it('names the setting, and the bytes as gradients and parameters are kept', () => {
    const trainer = { gradientClipVal: 1 };
    const clipped = said({ trainer });
    expect(clipped).toMatch(/^With strategy.cpuOffload, trainer.gradientClipVal makes .* 12 bytes more .*\.$/);
    expect(said({ precision: '16-mixed' })).toMatch(/, precision makes .* 8 bytes more/);
    expect(said({ precision: '16-true', trainer })).toMatch(/ 4 bytes more/);
  });
});

describe('a name', () => {
  it('has no control characters; any other text may be one', () => {
    for (const name of ['a\0b', 'a\nb', '\u001b[2J', '\u0085'])
      expect(problems({ name })).toMatchObject([{ path: 'name', message: expect.stringMatching(/control character/) }]);
    expect(problems({ name: 'Größe 7 → 漢字 🙂' })).toEqual([]);
  });
});

it('of many keys that a section has not, twenty are told, and how many more', () => {
  const unknown = Object.fromEntries(Array.from({ length: 20_000 }, (_, i) => [`k${i}`, 1]));
  const told = problems(unknown).filter(({ message }) => message.startsWith('unknown key'));
  expect(told).toHaveLength(20);
  expect(told.at(-1)!.message).toMatch(/; and 19980 more$/);
});
