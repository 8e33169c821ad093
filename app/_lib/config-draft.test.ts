import { describe, expect, it } from 'vitest';
import { checkConfig } from '../../engine/config.ts';
import {
  defaultDraft,
  flatten,
  fromYaml,
  problemsOf,
  toDraft,
  toYaml,
  valueAt,
  withKind,
  withoutDefaults,
  withValue,
} from './config-draft.ts';

describe('a config being edited', () => {
  it('starts legal', () => {
    expect(checkConfig(defaultDraft()).problems).toEqual([]);
  });

  it('changes one value and nothing else', () => {
    const before = defaultDraft();
    const after = withValue(before, 'model.ninp', 64);
    expect(valueAt(after, 'model.ninp')).toBe(64);
    expect(valueAt(before, 'model.ninp')).toBe(200);
    expect(after.data).toBe(before.data);
  });

  it('keeps what two kinds share and fills the rest', () => {
    const ddp = withKind(withValue(defaultDraft(), 'strategy.activationCheckpointingPolicy', ['A']), 'strategy', 'ddp');
    expect(ddp.strategy).toEqual({ kind: 'ddp', bucketCapMiB: 25, activationCheckpointingPolicy: ['A'] });
    const text = withKind(withValue(defaultDraft(), 'data.blockSize', 64), 'data', 'wikitext2');
    expect(valueAt(text, 'data.path')).toBe('');
    expect(valueAt(text, 'data.blockSize')).toBe(64);
  });

  it('wraps the blocks of the model that is chosen, unless a person chose a size', () => {
    const gpt2 = withKind(defaultDraft(), 'model', 'gpt2');
    expect(valueAt(gpt2, 'strategy.autoWrapPolicy')).toEqual(['GPT2Block']);
    expect(valueAt(withoutDefaults(gpt2), 'strategy')).toEqual({ kind: 'fsdp' });
    expect(toDraft(withoutDefaults(gpt2))).toEqual(gpt2);
    expect(checkConfig(withoutDefaults(gpt2)).config).toEqual(checkConfig(gpt2).config);
    const own = withValue(gpt2, 'strategy.autoWrapPolicy', ['GPT2MLP']);
    expect(valueAt(withKind(own, 'model', 'llama'), 'strategy.autoWrapPolicy')).toEqual(['LlamaDecoderLayer']);
    expect(withKind(own, 'model', 'gpt2')).toEqual(own);
    const checkpointed = withValue(gpt2, 'strategy.activationCheckpointingPolicy', ['GPT2Block']);
    expect(valueAt(withKind(checkpointed, 'model', 'llama'), 'strategy.activationCheckpointingPolicy')).toEqual([
      'LlamaDecoderLayer',
    ]);
    for (const any of [null, [], { minNumParams: 1000 }])
      expect(
        valueAt(withKind(withValue(gpt2, 'strategy.autoWrapPolicy', any), 'model', 'llama'), 'strategy.autoWrapPolicy'),
      ).toEqual(any);
    expect(toDraft(withoutDefaults(own))).toEqual(own);
    const again = withKind(withKind(gpt2, 'strategy', 'ddp'), 'strategy', 'fsdp');
    expect(valueAt(again, 'strategy.autoWrapPolicy')).toEqual(['GPT2Block']);
    const demo = withValue(gpt2, 'strategy.autoWrapPolicy', ['TransformerEncoderLayer', 'TransformerDecoderLayer']);
    expect(toDraft(withoutDefaults(demo))).toEqual(demo);
  });

  it('goes through YAML unchanged, with and without the defaults', () => {
    const draft = withKind(withValue(defaultDraft(), 'devices', 4), 'strategy', 'ddp');
    expect(fromYaml(toYaml(draft)).draft).toEqual(draft);
    const short = withoutDefaults(draft);
    expect(short).toMatchObject({ name: 'run', devices: 4, strategy: { kind: 'ddp' } });
    expect(short.trainer).toBeUndefined();
    expect(short.lrSchedule).toBeUndefined();
    expect(fromYaml(toYaml(short)).draft).toEqual(draft);
  });

  it('fills defaults around what is not legal, and keeps it', () => {
    const { draft } = fromYaml('model: { kind: demo-transformer, ninp: wide }\nspeed: 3\nstrategy: ddp');
    expect(valueAt(draft, 'model.ninp')).toBe('wide');
    expect(valueAt(draft, 'model.nlayers')).toBe(2);
    expect(valueAt(draft, 'strategy.kind')).toBe('ddp');
    expect(checkConfig(draft).problems.map(({ path }) => path)).toEqual(['model.ninp', 'speed']);
    expect(toDraft({ trainer: { steps: 'many' } }).trainer).toMatchObject({ steps: 'many', seed: 42 });
  });

  it('names contradictions beside values that are not legal', () => {
    const bad = withValue(withValue(withValue(defaultDraft(), 'trainer.steps', 'ten'), 'model.nhead', 3), 'devices', 9);
    expect(problemsOf(bad).map(({ path }) => path)).toEqual(['devices', 'trainer.steps', 'model.nhead']);
    expect(problemsOf(defaultDraft())).toEqual([]);
    expect(problemsOf({ ...defaultDraft(), speed: 1 }).map(({ path }) => path)).toEqual(['speed']);
  });

  it('says where YAML cannot be read', () => {
    expect(fromYaml('a: 1\nb: [1').problem).toMatch(/^Line \d/);
    expect(fromYaml('- 1').problem).toMatch(/keys and values/);
    expect(fromYaml('').draft).toEqual(defaultDraft());
  });

  it('lists leaves by dotted path', () => {
    expect([...flatten({ a: { b: 1, c: [1, 2] }, d: null })]).toEqual([
      ['a.b', 1],
      ['a.c', [1, 2]],
      ['d', null],
    ]);
  });
});
