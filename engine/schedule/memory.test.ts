import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { StudioError } from '../errors.ts';
import type { CompiledRun } from './compile.ts';
import { anyRun, compileFirst } from './fixtures/small-runs.ts';
import type { Life } from './lifetimes.ts';
import { emptyCategories, liveBytes, type Program, packMemory, roundUp, sumCategories } from './memory.ts';
import { type AdapterProfile, builtInProfiles } from './profile.ts';
import { type Tensor, touches } from './schedule.ts';

const profile = (maxBufferBytes: number, offsetAlignmentBytes: number): AdapterProfile => ({
  ...builtInProfiles.software,
  maxBufferBytes,
  maxBindingBytes: maxBufferBytes,
  offsetAlignmentBytes,
});

/** Programs of random tensors: passing ones with any life, state shared by name, staging slots. */
const anyPrograms = fc
  .record({
    align: fc.constantFrom(4, 16, 64, 256),
    slabBytes: fc.integer({ min: 1024, max: 5000 }),
    state: fc.array(fc.integer({ min: 1, max: 200 }), { maxLength: 12 }),
    passing: fc.array(
      fc.array(fc.record({ words: fc.integer({ min: 1, max: 200 }), from: fc.nat(20), length: fc.nat(8) }), {
        maxLength: 30,
      }),
      { minLength: 1, maxLength: 3 },
    ),
  })
  .map(({ align, slabBytes, state, passing }) => ({
    profile: profile(slabBytes, align),
    programs: passing.map((list): Program => {
      const tensors: Tensor[] = [];
      const lives: Life[] = [];
      const add = (name: string, words: number, isState: boolean, life: Life) => {
        tensors.push({
          id: tensors.length,
          name,
          bytes: words * 4,
          category: 'workspace',
          space: 'device',
          state: isState,
        });
        lives.push(life);
      };
      for (const [i, { words, from, length }] of list.entries())
        add(`t${i}`, words, false, { first: from, last: from + length });
      for (const [i, words] of state.entries()) add(`s${i}`, words, true, { first: 0, last: 40 });
      return { tensors, lives, dispatchCount: list.length };
    }),
  }));

describe('packing', () => {
  it('never puts two tensors that live together on one range, and keeps to alignment, capacity and slab borders', () => {
    fc.assert(
      fc.property(anyPrograms, ({ programs, profile: p }) => {
        const memory = packMemory(programs, p);
        for (const { bytes, space } of memory.slabs)
          if (space === 'device') expect(bytes).toBeLessThanOrEqual(p.maxBufferBytes);
        programs.forEach(({ tensors, lives }, i) => {
          for (const a of tensors) {
            const at = memory.placements[i][a.id];
            expect(at.offsetBytes % Math.max(16, p.offsetAlignmentBytes)).toBe(0);
            expect(at.offsetBytes + a.bytes).toBeLessThanOrEqual(memory.slabs[at.slab].bytes);
            for (const b of tensors) {
              const other = memory.placements[i][b.id];
              if (b.id <= a.id || other.slab !== at.slab) continue;
              const together = lives[a.id].first <= lives[b.id].last && lives[b.id].first <= lives[a.id].last;
              const apart =
                at.offsetBytes + a.bytes <= other.offsetBytes || other.offsetBytes + b.bytes <= at.offsetBytes;
              if (together) expect(apart, `${a.name} and ${b.name}`).toBe(true);
            }
          }
        });
      }),
      { numRuns: 300, seed: 1 },
    );
  });

  it('keeps state at one place in every program, and apart from what passes in any of them', () => {
    fc.assert(
      fc.property(anyPrograms, ({ programs, profile: p }) => {
        const memory = packMemory(programs, p);
        const stateOf = (i: number) => programs[i].tensors.filter((t) => t.state);
        for (const [i, { tensors }] of programs.entries()) {
          expect(stateOf(i).map((t) => memory.placements[i][t.id])).toEqual(
            stateOf(0).map((t) => memory.placements[0][t.id]),
          );
          for (const s of stateOf(i))
            for (const t of tensors.filter((x) => !x.state)) {
              const [a, b] = [memory.placements[i][s.id], memory.placements[i][t.id]];
              if (a.slab === b.slab)
                expect(a.offsetBytes + s.bytes <= b.offsetBytes || b.offsetBytes + t.bytes <= a.offsetBytes).toBe(true);
            }
        }
      }),
      { numRuns: 100, seed: 1 },
    );
  });

  it('reuses the room of what is freed', () => {
    const one = (id: number, first: number): [Tensor, Life] => [
      { id, name: `t${id}`, bytes: 1024, category: 'workspace', space: 'device', state: false },
      { first, last: first },
    ];
    const tensors = Array.from({ length: 10 }, (_, i) => one(i, i));
    const program = { tensors: tensors.map(([t]) => t), lives: tensors.map(([, l]) => l), dispatchCount: 0 };
    expect(packMemory([program], builtInProfiles.software).reservedBytes).toBe(1024);
  });

  it('is never less than what is live, and little more', () => {
    fc.assert(
      fc.property(anyRun, (input) => {
        const run = compileOrNull(input);
        fc.pre(run !== null);
        const peak = Math.max(...run!.steps.flatMap((s) => liveBytes(s.schedule).map(sumCategories)));
        expect(run!.memory.reservedBytes).toBeGreaterThanOrEqual(peak);
      }),
      { numRuns: 40, seed: 1 },
    );
    const { memory, steps } = compileFirst({ config: { model: { kind: 'demo-transformer', vocabSize: 5000 } } });
    const peak = Math.max(...liveBytes(steps[0].schedule).map(sumCategories));
    const uniformBytes = memory.slabs[memory.slabs.length - 1].bytes;
    expect(memory.reservedBytes - uniformBytes).toBeLessThan(1.05 * peak);
  });

  it('names the tensor that one binding cannot hold, and the limit', () => {
    const tooSmall = { ...builtInProfiles.software, maxBindingBytes: 4096 };
    const compile = () =>
      compileFirst({ config: { model: { kind: 'demo-transformer', vocabSize: 97 } }, profile: tooSmall });
    expect(compile).toThrow(StudioError);
    expect(compile).toThrow(
      /(parameters|gathered|gradients|exp_avg\w*) .* has \d+ bytes, and software binds at most 4096 /,
    );
    try {
      compile();
    } catch (error) {
      const { code, details } = error as StudioError;
      expect(code).toBe('out-of-memory');
      expect(details.limitBytes).toBe(4096);
      expect(details.bytes).toBeGreaterThan(4096);
    }
  });

  it('refuses a tensor that only its alignment takes over the end of a slab', () => {
    const tensors: Tensor[] = [
      { id: 0, name: 'big', bytes: 5000, category: 'workspace', space: 'device', state: false },
    ];
    const program = { tensors, lives: [{ first: 0, last: 0 }], dispatchCount: 0 };
    expect(() => packMemory([program], profile(5000, 256))).toThrow(/big has 5000 bytes/);
  });
});

describe('liveBytes', () => {
  it('agrees with lives counted from what the steps touch', () => {
    fc.assert(
      fc.property(anyRun, (input) => {
        const run = compileOrNull(input);
        fc.pre(run !== null);
        for (const { schedule } of run!.steps) expect(liveBytes(schedule)).toEqual(liveByTouch(schedule));
      }),
      { numRuns: 40, seed: 1 },
    );
  });
});

function compileOrNull(input: Parameters<typeof compileFirst>[0]): CompiledRun | null {
  try {
    return compileFirst(input);
  } catch (error) {
    if (error instanceof StudioError && error.code === 'out-of-memory') return null;
    throw error;
  }
}

/** The same count made another way: every tensor from its first touch to its last. */
function liveByTouch({ tensors, steps }: CompiledRun['steps'][number]['schedule']) {
  const lives = new Map<number, { first: number; last: number }>();
  for (const step of steps)
    for (const { range } of touches(step.action)) {
      const life = lives.get(range.tensor) ?? { first: step.id, last: step.id };
      life.last = step.id;
      lives.set(range.tensor, life);
    }
  return steps.map(({ id }) => {
    const now = emptyCategories();
    for (const t of tensors.filter(({ space }) => space !== 'host')) {
      const life = lives.get(t.id);
      if (t.state || (life && life.first <= id && id <= life.last)) now[t.category] += t.bytes;
    }
    return now;
  });
}

it('rounds up to a multiple', () => {
  expect([roundUp(0, 16), roundUp(1, 16), roundUp(16, 16), roundUp(17, 16)]).toEqual([0, 16, 16, 32]);
});
