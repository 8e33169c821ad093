import type { Life } from './lifetimes.ts';
import type { Step, Tensor } from './schedule.ts';

/** For how many visits of the compute lane a range that another lane used last is kept from other tensors. Two gain nothing. */
const VISITS_APART = 1;

/** Of the most that a step takes: packing leaves gaps where all of it is filled. */
const FULLNESS = 0.95;

/**
 * The lives by which tensors are packed. Whoever takes a range waits for its last user: a visit that takes one from a copy
 * listed just before it waits for that copy, and through it for the peers. So what a lane other than compute touches last is
 * kept apart until the visits listed next are over, wherever that needs no more room than the step takes at its fullest.
 */
export function packingLives(
  tensors: readonly Tensor[],
  steps: readonly Pick<Step, 'lane' | 'visit'>[],
  lives: readonly Life[],
): Life[] {
  const passing = tensors.filter(({ id, state, space }) => !state && space === 'device' && lives[id].first >= 0);
  const taken = new Float64Array(steps.length);
  for (const { id, bytes } of passing) for (let i = lives[id].first; i <= lives[id].last; i++) taken[i] += bytes;
  const room = taken.reduce((most, bytes) => Math.max(most, bytes), 0) * FULLNESS;
  const ends = visitEnds(steps);
  const apart = [...lives];
  passing.sort((a, b) => lives[a.id].last - lives[b.id].last || a.id - b.id);
  for (const { id, bytes } of passing) {
    const { first, last } = lives[id];
    if (steps[last].lane === 'compute') continue;
    const end = ends[last];
    let until = last;
    while (until < end && taken[until + 1] + bytes <= room) until++;
    for (let i = last + 1; i <= until; i++) taken[i] += bytes;
    apart[id] = { first, last: until };
  }
  return apart;
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
