import fc from 'fast-check';
import { expect, it } from 'vitest';
import { StudioError } from '../errors.ts';
import type { CompiledRun, CompiledStep } from './compile.ts';
import { eager, interleave, randomChoice } from './fixtures/interleaving.ts';
import { anyRun, compileRanks, type SmallRun } from './fixtures/small-runs.ts';
import { type Step, touches } from './schedule.ts';

/** Every execution that honours the waits computes the same, within the planned memory, and comes to its end. */

const choices = (seed: number) => [eager('compute'), eager('comm'), eager('host'), randomChoice(seed)];

it('any order that honours the waits ends, keeps ranges apart and reads what the listed order reads', () => {
  fc.assert(
    fc.property(anyRun, fc.nat(), (input, seed) => {
      const runs = compileOrNull(input);
      fc.pre(runs !== null);
      const step = runs![0].steps[0];
      const wanted = versionsRead(
        step.schedule.steps,
        step.schedule.steps.map((s) => s.id),
      );
      const shared = sharedRanges(step);
      for (const choose of choices(seed)) {
        const orders = interleave(
          runs!.map((run) => run.steps[0].schedule),
          choose,
          2,
        );
        for (const order of orders[0]) {
          expect(versionsRead(step.schedule.steps, order)).toEqual(wanted);
          expectApart(step, order, shared);
        }
      }
    }),
    { numRuns: 40, seed: 1 },
  );
});

it.each(['BACKWARD_PRE', 'BACKWARD_POST', null])(
  'with the limiter at most two units are gathered at once, in any order: prefetch %s',
  (backwardPrefetch) => {
    const strategy = { kind: 'fsdp', backwardPrefetch, limitAllGathers: true };
    const [{ steps }, ...others] = compileRanks({ config: { strategy, model: fourLayers } });
    const all = [steps[0].schedule, ...others.map((run) => run.steps[0].schedule)];
    expect(
      mostGathered(
        steps[0],
        steps[0].schedule.steps.map((s) => s.id),
      ),
    ).toBe(2);
    for (const choose of [...choices(1), randomChoice(2), randomChoice(3), randomChoice(4)])
      for (const order of interleave(all, choose, 1)[0]) expect(mostGathered(steps[0], order)).toBeLessThanOrEqual(2);
  },
);

it('without the limiter more are', () => {
  const strategy = { kind: 'fsdp', limitAllGathers: false };
  const [run, peer] = compileRanks({ config: { strategy, model: fourLayers } });
  const step = run.steps[0];
  expect(
    mostGathered(
      step,
      step.schedule.steps.map((s) => s.id),
    ),
  ).toBeGreaterThan(4);
  const [order] = interleave([step.schedule, peer.steps[0].schedule], eager('comm'))[0];
  expect(mostGathered(step, order)).toBeGreaterThan(4);
});

it('units that stay in use while others begin count, and no other is held with them', () => {
  fc.assert(
    fc.property(
      fc.subarray(['Embedding', 'TransformerEncoderLayer', 'Linear', 'LayerNorm', 'TransformerDecoder']),
      (p) => {
        const [run] = compileRanks({ config: { strategy: { kind: 'fsdp', autoWrapPolicy: p } } });
        const step = run.steps[0];
        // The embedding is used from the source to the target; a decoder, its layer's parts: each one level.
        const levels = ['Embedding', 'TransformerEncoderLayer', 'TransformerDecoder'].filter((c) =>
          p.includes(c),
        ).length;
        expect(
          mostGathered(
            step,
            step.schedule.steps.map((s) => s.id),
          ),
        ).toBeLessThanOrEqual(2 + levels);
      },
    ),
    { numRuns: 20, seed: 1 },
  );
});

const fourLayers = { kind: 'demo-transformer', vocabSize: 11, ninp: 4, nhead: 2, nhid: 4, nlayers: 4 };

function compileOrNull(input: SmallRun): CompiledRun[] | null {
  try {
    return compileRanks(input);
  } catch (error) {
    if (error instanceof StudioError && error.code === 'out-of-memory') return null;
    throw error;
  }
}

/** For each step the last writer of every tensor that it touches, when the steps run in that order. */
function versionsRead(steps: readonly Step[], order: readonly number[]): string[] {
  const lastWriter = new Map<number, number>();
  const seen: string[] = new Array(steps.length);
  for (const id of order) {
    const touched = touches(steps[id].action);
    seen[id] = touched.map(({ range }) => `${range.tensor}:${lastWriter.get(range.tensor) ?? 'state'}`).join(' ');
    for (const { range, access } of touched) if (access !== 'read') lastWriter.set(range.tensor, id);
  }
  return seen;
}

/** Pairs of passing tensors that lie on one range. */
function sharedRanges({ schedule, placements }: CompiledStep): [number, number][] {
  const passing = schedule.tensors.filter((t) => !t.state && t.space === 'device' && placements[t.id].slab >= 0);
  return passing.flatMap((a, i) =>
    passing.slice(i + 1).flatMap((b): [number, number][] => {
      const [p, q] = [placements[a.id], placements[b.id]];
      const shared =
        p.slab === q.slab && p.offsetBytes < q.offsetBytes + b.bytes && q.offsetBytes < p.offsetBytes + a.bytes;
      return shared ? [[a.id, b.id]] : [];
    }),
  );
}

function expectApart({ schedule }: CompiledStep, order: readonly number[], shared: readonly [number, number][]): void {
  const first = new Map<number, number>();
  const last = new Map<number, number>();
  order.forEach((id, position) => {
    for (const { range } of touches(schedule.steps[id].action)) {
      if (!first.has(range.tensor)) first.set(range.tensor, position);
      last.set(range.tensor, position);
    }
  });
  for (const [a, b] of shared)
    if (first.get(a)! <= last.get(b)! && first.get(b)! <= last.get(a)!)
      throw new Error(`${schedule.tensors[a].name} and ${schedule.tensors[b].name} are on one range together`);
}

/** Most gathered units other than the root between the start of their gather and their free. */
function mostGathered({ schedule }: CompiledStep, order: readonly number[]): number {
  const open = new Set<number>();
  const isUnit = (id: number) =>
    schedule.tensors[id].category === 'gathered' && !schedule.tensors[id].name.startsWith('gathered root');
  let most = 0;
  for (const id of order) {
    const step = schedule.steps[id];
    for (const t of step.creates) if (isUnit(t)) open.add(t);
    most = Math.max(most, open.size);
    for (const t of step.frees) open.delete(t);
  }
  return most;
}
