import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { StudioError } from '../errors.ts';
import { demoTransformer } from '../model/demo-transformer.ts';
import type { Model } from '../model/model.ts';
import { smallModel, smallShape } from './fixtures/small-runs.ts';
import { tiedModel } from './fixtures/tied-model.ts';
import { unitProgram } from './unit-program.ts';

const demo = demoTransformer({ ...smallModel, dropout: 0 });
const context = { rank: 0, seed: 1 };
const units = (model: Model, policy: readonly string[]) => unitProgram(model, smallShape, context, policy).units;
const classes = [...new Set(demo.modules.map((m) => m.className))];

describe('units', () => {
  it('are the modules that the policy names, and the root with the rest', () => {
    const list = units(demo, ['TransformerEncoderLayer', 'TransformerDecoderLayer']);
    expect(list.map((u) => u.name)).toEqual([
      'root',
      'transformer.encoder.layers.0',
      'transformer.encoder.layers.1',
      'transformer.decoder.layers.0',
      'transformer.decoder.layers.1',
    ]);
    expect(list[0].parameters).toEqual([
      'embedding.weight',
      'transformer.encoder.norm.weight',
      'transformer.encoder.norm.bias',
      'transformer.decoder.norm.weight',
      'transformer.decoder.norm.bias',
      'decoder.weight',
      'decoder.bias',
    ]);
    expect(list[3].parameters.every((name) => name.startsWith('transformer.decoder.layers.0.'))).toBe(true);
  });

  it('own every parameter once, in the innermost module that holds it, whatever the policy', () => {
    fc.assert(
      fc.property(fc.subarray(classes), (policy) => {
        const list = units(demo, policy);
        expect(list.flatMap((u) => u.parameters).sort()).toEqual(demo.parameters.map((p) => p.name).sort());
        for (const { path, parameters } of list)
          for (const name of parameters) {
            const owners = list.filter((u) => u.path === '' || name.startsWith(`${u.path}.`));
            expect(owners.reduce((a, b) => (b.path.length > a.path.length ? b : a)).path).toBe(path);
          }
      }),
      { numRuns: 50, seed: 1 },
    );
  });

  it('cut the step into visits: forward first, all calls in order, neighbours different', () => {
    const { visits } = unitProgram(demo, smallShape, context, ['Linear', 'TransformerEncoderLayer']);
    const firstBackward = visits.findIndex((v) => v.phase === 'backward');
    expect(visits.every((v, i) => (v.phase === 'backward') === i >= firstBackward)).toBe(true);
    for (let i = 1; i < visits.length; i++)
      expect([visits[i].unit, visits[i].phase]).not.toEqual([visits[i - 1].unit, visits[i - 1].phase]);
    const whole = unitProgram(demo, smallShape, context, []).visits;
    expect(visits.flatMap((v) => v.calls.map((c) => c.kernel.name))).toEqual(
      whole.flatMap((v) => v.calls.map((c) => c.kernel.name)),
    );
    expect(whole).toHaveLength(2);
  });

  it('keep a tied parameter in the lowest unit that contains all its uses', () => {
    const owner = (policy: string[], parameter: string) =>
      units(tiedModel, policy).find((u) => u.parameters.includes(parameter))!.name;
    // Used by two leaves of one block: the block, where blocks are units; else the root.
    expect(owner(['Block', 'Leaf'], 'blocks.0.first.weight')).toBe('blocks.0');
    expect(owner(['Leaf'], 'blocks.0.first.weight')).toBe('root');
    expect(owner([], 'blocks.0.first.weight')).toBe('root');
    // Used by one leaf only.
    expect(owner(['Block', 'Leaf'], 'blocks.0.first.bias')).toBe('blocks.0.first');
    // Used in both blocks.
    expect(owner(['Block', 'Leaf'], 'blocks.1.second.weight')).toBe('root');
    // The embedding is also the head.
    expect(owner(['Block', 'Leaf', 'Embedding'], 'embedding.weight')).toBe('root');
  });

  it('refuse a class that the model does not have, by name, and say which it has', () => {
    try {
      units(demo, ['TransformerEncoderLayer', 'LlamaDecoderLayer', 'GPT2Block']);
      expect.fail('accepted');
    } catch (error) {
      expect(error).toBeInstanceOf(StudioError);
      expect((error as StudioError).code).toBe('invalid-config');
      expect((error as StudioError).message).toMatch(
        /^strategy\.autoWrapPolicy: LlamaDecoderLayer, GPT2Block matches no module .*TransformerDecoderLayer/,
      );
    }
  });
});
