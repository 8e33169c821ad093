import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { demoTransformer } from '../../model/demo-transformer.ts';
import { elementsOf } from '../../ops/graph.ts';
import { compileFirst, smallShape } from '../fixtures/small-runs.ts';
import { tiedModel } from '../fixtures/tied-model.ts';
import { unitProgram } from '../unit-program.ts';
import { ddp } from './ddp.ts';

const wide = { vocabSize: 5000, ninp: 200, nhead: 2, nhid: 200, nlayers: 2, dropout: 0 };
const model = demoTransformer(wide);
const program = unitProgram(model, smallShape, { rank: 0, seed: 1 }, model.blockClasses);
const bytesOf = new Map(model.parameters.map((p) => [p.name, 4 * elementsOf(p.shape)]));
const MiB = 2 ** 20;

describe('buckets', () => {
  it('hold every parameter once, at most the cap or one parameter, the first 1 MiB', () => {
    fc.assert(
      fc.property(fc.double({ min: 0.001, max: 30, noNaN: true }), (cap) => {
        const { groups, mesh, gathers } = ddp(program, 2, cap);
        expect([mesh, gathers]).toEqual([{ replicate: 2, shard: 1 }, []]);
        expect(groups.flatMap((g) => g.parameters).sort()).toEqual(model.parameters.map((p) => p.name).sort());
        groups.forEach(({ parameters }, i) => {
          const bytes = parameters.reduce((sum, name) => sum + bytesOf.get(name)!, 0);
          if (parameters.length > 1) expect(bytes).toBeLessThanOrEqual((i === 0 ? 1 : cap) * MiB);
        });
      }),
      { numRuns: 30, seed: 1 },
    );
  });

  it('are as few as their order allows', () => {
    const { groups } = ddp(program, 2, 4);
    for (let i = 1; i < groups.length; i++) {
      const before = groups[i - 1].parameters.reduce((sum, name) => sum + bytesOf.get(name)!, 0);
      expect(before + bytesOf.get(groups[i].parameters[0])!).toBeGreaterThan((i === 1 ? 1 : 4) * MiB);
    }
  });

  it('follow the order in which backward completes gradients: the head first, the embedding last', () => {
    const { groups } = ddp(program, 2, 1);
    expect(groups[0].parameters[0]).toMatch(/^decoder\./);
    expect(groups[groups.length - 1].parameters).toContain('embedding.weight');
    const visits = groups.map((g) => g.reduceAfterVisits[0]);
    expect(visits).toEqual([...visits].sort((a, b) => a - b));
  });

  it('wait for the last use of a tied parameter', () => {
    const tied = unitProgram(tiedModel, smallShape, { rank: 0, seed: 1 }, ['Block']);
    const { groups } = ddp(tied, 2, 25);
    const group = groups.find((g) => g.parameters.includes('embedding.weight'))!;
    expect(group.reduceAfterVisits[0]).toBe(tied.visits.length - 1);
  });
});

describe('the schedule of DDP', () => {
  const { steps } = compileFirst({
    config: { strategy: { kind: 'ddp', bucketCapMiB: 1 }, model: { kind: 'demo-transformer', ...wide } },
  }).steps[0].schedule;
  const backward = steps.filter((s) => s.lane === 'compute' && s.phase === 'backward');
  const lastBackward = backward[backward.length - 1].id;

  it('reduces its first bucket before the last backward op', () => {
    const reduced = steps.filter((s) => s.kind === 'all-reduce' && s.unit === 'bucket 0');
    expect(reduced.length).toBeGreaterThanOrEqual(2);
    expect(Math.max(...reduced.map((s) => s.id))).toBeLessThan(lastBackward);
    // Nothing holds it back until then: neither it nor its publications wait for that op.
    const held = steps.filter((s) => s.unit === 'bucket 0' && s.phase === 'backward' && s.lane !== 'compute');
    for (const step of held) for (const wait of step.waits) expect(wait).toBeLessThan(lastBackward);
  });

  it('computes on while a bucket is reduced: backward waits for none of it', () => {
    const comm = new Set(steps.filter((s) => s.kind === 'all-reduce').map((s) => s.id));
    const waiting = backward.filter((s) => s.waits.some((w) => comm.has(w)));
    // Where a reduction's scratch lies, backward may have to wait; most of it does not.
    expect(waiting.length).toBeLessThan(backward.length / 10);
  });

  it('gathers, scatters and shards nothing', () => {
    expect(steps.some((s) => s.kind === 'all-gather' || s.kind === 'reduce-scatter')).toBe(false);
  });
});
