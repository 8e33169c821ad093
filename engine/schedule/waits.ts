import type { DraftStep } from './draft.ts';
import type { Life } from './lifetimes.ts';
import type { Placement } from './memory.ts';
import type { Lane, Step, Tensor } from './schedule.ts';

type UnwaitedStep = Omit<Step, 'waits'> & Pick<DraftStep, 'after'>;

/**
 * The wait pass. A lane runs its own steps in order; of other lanes a step waits for: the last write of what it reads, all
 * uses of what it overwrites, and the end of every tensor whose range it takes. So any execution that honours the waits
 * computes the same and stays within the plan. Waits that follow from earlier ones are left out.
 */
export function withWaits(
  tensors: readonly Tensor[],
  steps: readonly UnwaitedStep[],
  lives: readonly Life[],
  placements: readonly Placement[],
): Step[] {
  const needed = dependencies(tensors, steps, lives, placements);
  /** For each step, the last step of every lane that is done when it starts or is done. */
  const known: Record<Lane, number>[] = [];
  const lastOfLane: Record<Lane, number> = { compute: -1, comm: -1, host: -1 };
  return steps.map(({ after: _, ...step }, id) => {
    const previous = lastOfLane[step.lane];
    const clock = previous < 0 ? { compute: -1, comm: -1, host: -1 } : { ...known[previous] };
    const waits: number[] = [];
    for (const other of [...needed[id]].sort((a, b) => b - a)) {
      const lane = steps[other].lane;
      if (lane === step.lane || clock[lane] >= other) continue;
      waits.push(other);
      for (const l of ['compute', 'comm', 'host'] as const) clock[l] = Math.max(clock[l], known[other][l]);
    }
    clock[step.lane] = id;
    known[id] = clock;
    lastOfLane[step.lane] = id;
    return { ...step, waits: waits.sort((a, b) => a - b) };
  });
}

function dependencies(
  tensors: readonly Tensor[],
  steps: readonly UnwaitedStep[],
  lives: readonly Life[],
  placements: readonly Placement[],
): Set<number>[] {
  const needed = steps.map((step) => new Set(step.after));
  const lastWrite = new Map<number, number>();
  const readsSince = new Map<number, number[]>();
  for (const step of steps) {
    const need = needed[step.id];
    for (const id of step.reads) {
      if (lastWrite.has(id)) need.add(lastWrite.get(id)!);
    }
    for (const id of step.writes) {
      if (lastWrite.has(id)) need.add(lastWrite.get(id)!);
      for (const reader of readsSince.get(id) ?? []) need.add(reader);
    }
    for (const id of step.reads) {
      const reads = readsSince.get(id);
      if (reads) reads.push(step.id);
      else readsSince.set(id, [step.id]);
    }
    for (const id of step.writes) {
      lastWrite.set(id, step.id);
      readsSince.set(id, []);
    }
    need.delete(step.id);
  }
  addReuse(needed, tensors, steps, lives, placements);
  return needed;
}

/** Whoever takes a range waits for the last users of what lay there. */
function addReuse(
  needed: Set<number>[],
  tensors: readonly Tensor[],
  steps: readonly UnwaitedStep[],
  lives: readonly Life[],
  placements: readonly Placement[],
): void {
  const users = new Map<number, Map<Lane, number>>();
  for (const step of steps)
    for (const id of [...step.reads, ...step.writes]) {
      const byLane = users.get(id) ?? new Map<Lane, number>();
      byLane.set(step.lane, step.id);
      users.set(id, byLane);
    }
  const passing = tensors.filter((t) => t.space === 'device' && !t.state && lives[t.id].first >= 0);
  // Nearest former occupant of each byte: walk tensors by creation, keep the ranges in use now or before, in order.
  passing.sort((a, b) => lives[a.id].first - lives[b.id].first || a.id - b.id);
  const occupied = new Map<number, Occupied[]>();
  for (const tensor of passing) {
    const { slab, offsetBytes } = placements[tensor.id];
    const [from, to] = [offsetBytes, offsetBytes + tensor.bytes];
    const ranges = occupied.get(slab) ?? [];
    occupied.set(slab, ranges);
    const first = firstEndingAfter(ranges, from);
    const instead: Occupied[] = [];
    let next = first;
    for (; next < ranges.length && ranges[next].from < to; next++) {
      const o = ranges[next];
      for (const user of users.get(o.tensor)!.values()) needed[lives[tensor.id].first].add(user);
      if (o.from < from) instead.push({ ...o, to: from });
    }
    if (from < to) instead.push({ from, to, tensor: tensor.id });
    if (next > first && ranges[next - 1].to > to) instead.push({ ...ranges[next - 1], from: to });
    ranges.splice(first, next - first, ...instead);
  }
}

/** A range of a slab and who had it last. Lists of them are in order and do not overlap. */
interface Occupied {
  readonly from: number;
  readonly to: number;
  readonly tensor: number;
}

/** Index of the first range that ends after `offset`. */
function firstEndingAfter(ranges: readonly Occupied[], offset: number): number {
  let [low, high] = [0, ranges.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ranges[middle].to <= offset) low = middle + 1;
    else high = middle;
  }
  return low;
}
