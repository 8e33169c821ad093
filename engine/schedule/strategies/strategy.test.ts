import { describe, expect, it } from 'vitest';
import { demoTransformer } from '../../model/demo-transformer.ts';
import { compileFirst, smallModel, smallShape } from '../fixtures/small-runs.ts';
import { unitProgram } from '../unit-program.ts';
import { unitGroups } from './strategy.ts';

/** An embedding and a head of 1 MiB and more each. */
const large = { ...smallModel, vocabSize: 33_000, ninp: 8, nhead: 2 };
const layers = ['TransformerEncoderLayer', 'TransformerDecoderLayer'];
const groupsOf = (sizes: Parameters<typeof demoTransformer>[0], options = {}, policy = layers) => {
  const model = demoTransformer(sizes);
  const program = unitProgram(model, smallShape, { rank: 0, seed: 1 }, policy, options);
  return { program, model, ...unitGroups(program) };
};
const named = ({ groups, units }: ReturnType<typeof unitGroups>, unit: string) =>
  units.find(({ name }) => name === unit)!.groups.map((group) => groups[group].name);

describe('the groups of a unit', () => {
  it('are one where its parameters are small, or no more than one is large', () => {
    expect(named(groupsOf({ ...smallModel, dropout: 0 }), 'root')).toEqual(['root']);
    expect(named(groupsOf({ ...large, dropout: 0 }, {}, [...layers, 'Embedding']), 'root')).toEqual(['root']);
  });

  it('are the embedding, the head and the rest of the root where those are large; each parameter is in one', () => {
    const found = groupsOf({ ...large, dropout: 0 });
    const [embedding, rest, head, ...none] = named(found, 'root');
    expect([embedding, head, none]).toEqual(['root embedding.weight', 'root decoder.weight', []]);
    expect(rest).toMatch(/^root .*norm/);
    const own = found.groups.filter(({ unit }) => unit === 'root');
    const root = found.program.units.find(({ name }) => name === 'root')!;
    expect(own.flatMap(({ parameters }) => parameters).sort()).toEqual([...root.parameters].sort());
    // The head's gradient is complete when backward begins, the embedding's when it ends.
    const [last] = own[0].reduceAfterVisits;
    const [first] = own[2].reduceAfterVisits;
    expect(last).toBe(found.program.visits.length - 1);
    expect(first).toBe(found.program.visits.findIndex(({ phase }) => phase === 'backward'));
  });

  it('have what is frozen apart, whatever it is', () => {
    const found = groupsOf({ ...large, dropout: 0 }, { freeze: ['embedding.weight'] });
    expect(named(found, 'root')).toEqual(['root', 'root frozen']);
    expect(found.groups.find(({ name }) => name === 'root frozen')).toMatchObject({ unit: 'root', trainable: false });
  });
});

it.each(['FULL_SHARD', 'SHARD_GRAD_OP'])(
  '%s frees a large embedding after forward, and the gradient of a large head before the end of backward',
  (shardingStrategy) => {
    const { schedule } = compileFirst({ config: { model: large, strategy: { kind: 'fsdp', shardingStrategy } } })
      .steps[0];
    const { steps, tensors } = schedule;
    const life = (name: RegExp) => {
      const { id } = tensors.find((tensor) => name.test(tensor.name))!;
      return steps.filter(({ creates, frees }) => creates.includes(id) || frees.includes(id)).map((step) => step.id);
    };
    const backward = steps.filter(({ lane, phase }) => lane === 'compute' && phase === 'backward');
    const [, embedding] = life(/^gathered root embedding.weight/);
    expect(embedding).toBeLessThan(backward[0].id);
    const [, gradient] = life(/^whole gradients root decoder.weight/);
    expect(gradient).toBeLessThan(backward[backward.length - 1].id);
  },
);
