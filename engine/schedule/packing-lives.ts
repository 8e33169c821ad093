import type { Life } from './lifetimes.ts';
import type { Step, Tensor } from './schedule.ts';

/**
 * For how many visits of the compute lane a range that another lane used last is kept from other tensors. With one, every
 * second unit of backward waits for the reduction of the unit before it, and copies stand still meanwhile.
 */
const VISITS_APART = 2;

/** For how many copies it is kept at least from what copies take, if there is room: fewer hand ranges on to each other. */
const COPIES_APART = 3;

/** How much more than the most of what passes a step may take for it, whatever it is granted, unless it is said. */
const MOST_SPARE = 0.02;

/** Of the most that a step takes, where it may not take more: packing leaves gaps where all of it is filled. */
const FULLNESS = 0.95;

/**
 * The lives by which tensors are packed. Whoever takes a range waits for its last user: a visit that takes one from a copy
 * listed just before it waits for that copy, and through it for the peers; and copies that hand a range on to each other run
 * one after the other. So what a lane other than compute touches last is kept apart until the visits listed next are over,
 * wherever that needs no more room than the step takes at its fullest and `spareBytes`; null: not even all of that.
 */
export function packingLives(
  tensors: readonly Tensor[],
  steps: readonly Pick<Step, 'lane' | 'visit'>[],
  lives: readonly Life[],
  spareBytes: number | null,
  mostSpare = MOST_SPARE,
): Life[] {
  const passing = tensors.filter(({ id, state, space }) => !state && space === 'device' && lives[id].first >= 0);
  const taken = new Float64Array(steps.length);
  for (const { id, bytes } of passing) for (let i = lives[id].first; i <= lives[id].last; i++) taken[i] += bytes;
  const fullest = taken.reduce((most, bytes) => Math.max(most, bytes), 0);
  const room = spareBytes === null ? fullest * FULLNESS : fullest + Math.min(spareBytes, fullest * mostSpare);
  const ends = visitEnds(steps);
  const apart = [...lives];
  passing.sort((a, b) => lives[a.id].last - lives[b.id].last || a.id - b.id);
  // First what keeps copies apart, for all of them; then, of the room that is left, what keeps visits from waiting.
  for (const most of [COPIES_APART, Number.POSITIVE_INFINITY])
    for (const { id, bytes } of passing) {
      const { last } = lives[id];
      if (steps[last].lane === 'compute') continue;
      const { first, last: kept } = apart[id];
      let until = kept;
      let copies = countCopies(steps, last, kept);
      while (until < ends[last] && taken[until + 1] + bytes <= room) {
        if (steps[until + 1].lane !== 'compute' && ++copies > most) break;
        until++;
      }
      for (let i = kept + 1; i <= until; i++) taken[i] += bytes;
      apart[id] = { first, last: until };
    }
  return apart;
}

/** The steps of other lanes than compute after `from`, up to `to`. */
function countCopies(steps: readonly Pick<Step, 'lane'>[], from: number, to: number): number {
  let count = 0;
  for (let i = from + 1; i <= to; i++) if (steps[i].lane !== 'compute') count++;
  return count;
}

/** For each step, the last step of the VISITS_APART visits of the compute lane that begin after it. */
function visitEnds(steps: readonly Pick<Step, 'lane' | 'visit'>[]): number[] {
  const endOf = new Map<number, number>();
  for (const [id, { lane, visit }] of steps.entries()) if (lane === 'compute') endOf.set(visit, id);
  const result: number[] = [];
  const begun = new Map<number, number>();
  for (let id = steps.length - 1; id >= 0; id--) {
    const next = [...begun.keys()].slice(-VISITS_APART);
    result[id] = next.length ? endOf.get(next[0])! : id;
    const { lane, visit } = steps[id];
    if (lane !== 'compute') continue;
    begun.delete(visit);
    begun.set(visit, id);
  }
  return result;
}
