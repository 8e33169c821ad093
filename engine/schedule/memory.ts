import { StudioError } from '../errors.ts';
import type { Life } from './lifetimes.ts';
import type { AdapterProfile } from './profile.ts';
import {
  CATEGORIES,
  type Category,
  dispatches,
  type Schedule,
  type Space,
  type Step,
  type Tensor,
} from './schedule.ts';

/** A GPUBuffer that a rank holds from before step 0 to the end. */
export interface Slab {
  readonly bytes: number;
  readonly space: Exclude<Space, 'host'> | 'uniform';
}

/** Where a tensor lies. */
export interface Placement {
  readonly slab: number;
  readonly offsetBytes: number;
}

export type BytesByCategory = Record<Category, number>;

/** The memory of one rank. */
export interface MemoryPlan {
  readonly slabs: readonly Slab[];
  /** Bytes of all slabs. */
  readonly reservedBytes: number;
  /** Where each program's tensors lie, by tensor id. A tensor that no step touches has no place. */
  readonly placements: readonly (readonly Placement[])[];
  /** Offset of each program's first dispatch in the uniform slab, which is the last one. */
  readonly uniformOffsets: readonly number[];
}

/** A compiled step before it has its memory: one for each batch shape of a run. */
export interface Program {
  readonly tensors: readonly Tensor[];
  readonly lives: readonly Life[];
  readonly dispatchCount: number;
}

/** Bytes of one dispatch's slot in the uniform slab: WebGPU's guaranteed alignment of uniform bindings. */
export const UNIFORM_SLOT_BYTES = 256;

/**
 * Gives every tensor its place. State lies at the bottom and is shared, by name, by the programs of all batch shapes; in the
 * room that it leaves each program's other tensors are packed by interval over the whole step, across categories: each at the
 * lowest offset that no tensor alive at the same time occupies, in the order of several that takes the least. Staging slots and the uniforms of the dispatches are
 * buffers of their own. Throws StudioError `out-of-memory`, naming the tensor, when one binding is over the adapter's limit.
 */
export function packMemory(programs: readonly Program[], profile: AdapterProfile): MemoryPlan {
  const align = Math.max(16, profile.offsetAlignmentBytes);
  const capacity = Math.floor(profile.maxBufferBytes / align) * align;
  const limitBytes = Math.min(profile.maxBindingBytes, capacity);
  const placeIn = (busy: Placed[], bytes: number, life: Life): Placed => {
    const from = lowestGap(busy, roundUp(bytes, align), life, capacity);
    const placed = { from, to: from + roundUp(bytes, align), life };
    busy.splice(positionOf(busy, from), 0, placed);
    return placed;
  };
  for (const { tensors } of programs)
    for (const t of tensors) if (t.space === 'device') refuseTooLarge(t, limitBytes, profile.name);

  const state = new Map<string, Placed>();
  const always: Life = { first: 0, last: Number.POSITIVE_INFINITY };
  const kept: Placed[] = [];
  for (const t of programs.flatMap((p) => p.tensors.filter((x) => x.space === 'device' && x.state)))
    if (!state.has(t.name)) state.set(t.name, placeIn(kept, t.bytes, always));
  const passing = programs.map((program) => {
    const base = joined(kept);
    const needed = roundUp(
      Math.max(0, ...base.map(({ to }) => to)) +
        passingBytes(program).reduce((most, bytes) => Math.max(most, bytes), 0),
      align,
    );
    let best: { top: number; placed: Map<number, Placed> } | null = null;
    for (const order of packingOrders(program)) {
      const busy = [...base];
      const placed = new Map(order.map((t) => [t.id, placeIn(busy, t.bytes, program.lives[t.id])]));
      const top = busy.reduce((most, { to }) => Math.max(most, to), 0);
      if (!best || top < best.top) best = { top, placed };
      if (best.top <= needed * (1 + GOOD_ENOUGH) || order.length > MANY_TENSORS) break;
    }
    return best!.placed;
  });
  const slabEnds: number[] = [];
  for (const { from, to } of [...kept, ...passing.flatMap((placed) => [...placed.values()])]) {
    const slab = Math.floor(from / capacity);
    slabEnds[slab] = Math.max(slabEnds[slab] ?? 0, to - slab * capacity);
  }
  const slabs: Slab[] = Array.from(slabEnds, (bytes) => ({ bytes: bytes ?? 0, space: 'device' as const }));
  const staging = new Map<string, number>();
  for (const { tensors, lives } of programs)
    for (const t of tensors) {
      if (t.space === 'device' || t.space === 'host' || lives[t.id].first < 0) continue;
      const known = staging.get(t.name);
      if (known === undefined) staging.set(t.name, slabs.push({ bytes: roundUp(t.bytes, 16), space: t.space }) - 1);
      else slabs[known] = { ...slabs[known], bytes: Math.max(slabs[known].bytes, roundUp(t.bytes, 16)) };
    }
  const placements = programs.map(({ tensors }, p) =>
    tensors.map((t): Placement => {
      if (t.space !== 'device') return { slab: staging.get(t.name) ?? -1, offsetBytes: 0 };
      const from = (t.state ? state.get(t.name) : passing[p].get(t.id))?.from ?? -1;
      return { slab: Math.floor(from / capacity), offsetBytes: from < 0 ? 0 : from % capacity };
    }),
  );
  const uniformOffsets: number[] = [];
  let uniformBytes = 0;
  for (const { dispatchCount } of programs) {
    uniformOffsets.push(uniformBytes);
    uniformBytes += dispatchCount * UNIFORM_SLOT_BYTES;
  }
  slabs.push({ bytes: uniformBytes, space: 'uniform' });
  return { slabs, placements, uniformOffsets, reservedBytes: slabs.reduce((sum, s) => sum + s.bytes, 0) };
}

/** A packing that is this close to what has to be live at once is not tried to better. */
const GOOD_ENOUGH = 2e-4;
/** Of so many tensors a packing takes seconds: one must do. */
const MANY_TENSORS = 20_000;

/**
 * The device tensors that live within the step, in the orders in which packing them is tried: the largest first; those that
 * live when the step is at its fullest; those that take the most bytes times steps; the longest lives. Among equals the one
 * that is kept longest comes first.
 */
function* packingOrders(program: Program): Generator<Tensor[]> {
  const { lives } = program;
  const passing = passingTensors(program);
  const steps = (t: Tensor) => lives[t.id].last - lives[t.id].first + 1;
  const bySize = (a: Tensor, b: Tensor) => b.bytes - a.bytes || lives[b.id].last - lives[a.id].last || a.id - b.id;
  const most = (weight: (t: Tensor) => number) => [...passing].sort((a, b) => weight(b) - weight(a) || bySize(a, b));
  yield most((t) => t.bytes);
  const fullest = mostWithin(passingBytes(program));
  yield most((t) => fullest(lives[t.id]));
  yield most((t) => t.bytes * steps(t));
  yield most(steps);
}

function passingTensors({ tensors, lives }: Program): Tensor[] {
  return tensors.filter((t) => t.space === 'device' && !t.state && lives[t.id].first >= 0);
}

/** Bytes of passing device tensors that live at each step. */
function passingBytes(program: Program): Float64Array {
  const passing = passingTensors(program);
  const end = passing.reduce((last, t) => Math.max(last, program.lives[t.id].last), -1) + 1;
  const live = new Float64Array(end + 1);
  for (const t of passing) {
    live[program.lives[t.id].first] += t.bytes;
    live[program.lives[t.id].last + 1] -= t.bytes;
  }
  for (let i = 1; i <= end; i++) live[i] += live[i - 1];
  return live.subarray(0, end);
}

/** The largest of the values within a life, by a table of those within 1, 2, 4 … from each. */
function mostWithin(values: Float64Array): (life: Life) => number {
  const table = [values];
  for (let width = 1; 2 * width <= values.length; width *= 2) {
    const half = table[table.length - 1];
    table.push(half.map((value, i) => Math.max(value, half[Math.min(i + width, half.length - 1)])));
  }
  return ({ first, last }) => {
    const level = Math.floor(Math.log2(last - first + 1));
    return Math.max(table[level][first], table[level][last - 2 ** level + 1]);
  };
}

/** A range that is taken for a life. Lists of them are in ascending order of `from`. */
interface Placed {
  readonly from: number;
  readonly to: number;
  readonly life: Life;
}

/** The same ranges, those that touch made one. For ranges of one life. */
function joined(ranges: readonly Placed[]): Placed[] {
  const list: Placed[] = [];
  for (const range of ranges) {
    const last = list[list.length - 1];
    if (last?.to === range.from) list[list.length - 1] = { ...last, to: range.to };
    else list.push(range);
  }
  return list;
}

/** Index of the first range that begins after `from`. */
function positionOf(list: readonly Placed[], from: number): number {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].from <= from) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Lowest offset of `bytes` that no range alive at the same time takes, not straddling a slab's end. */
function lowestGap(busy: readonly Placed[], bytes: number, life: Life, capacity: number): number {
  const fits = (offset: number) => {
    const slabEnd = (Math.floor(offset / capacity) + 1) * capacity;
    return offset + bytes <= slabEnd ? offset : slabEnd;
  };
  let offset = fits(0);
  for (const { from, to, life: other } of busy) {
    if (other.first > life.last || life.first > other.last) continue;
    if (offset + bytes <= from) return offset;
    if (to > offset) offset = fits(to);
  }
  return offset;
}

function refuseTooLarge(tensor: Tensor, limitBytes: number, adapter: string): void {
  if (tensor.bytes <= limitBytes) return;
  throw new StudioError(
    'out-of-memory',
    `${tensor.name} has ${tensor.bytes} bytes, and ${adapter} binds at most ${limitBytes} at once. ` +
      'Wrap smaller units (strategy.autoWrapPolicy), lower strategy.bucketCapMiB, or use a smaller batch',
    { tensor: tensor.name, bytes: tensor.bytes, limitBytes },
  );
}

export function roundUp(value: number, multiple: number): number {
  return Math.ceil(value / multiple) * multiple;
}

/** What is live at each step, by category: tensors created and not yet freed, and those that the step itself touches. */
export function liveBytes(schedule: Pick<Schedule, 'tensors' | 'steps'>): BytesByCategory[] {
  const now = emptyCategories();
  for (const t of schedule.tensors) if (t.state && t.space !== 'host') now[t.category] += t.bytes;
  const later: number[] = [];
  return schedule.steps.map((step) => {
    for (const id of later.splice(0)) now[schedule.tensors[id].category] -= schedule.tensors[id].bytes;
    for (const id of step.creates) now[schedule.tensors[id].category] += schedule.tensors[id].bytes;
    // What a `free` step frees is gone at that step; what another step frees it still touches.
    const gone = step.action.type === 'free' ? step.frees : [];
    for (const id of gone) now[schedule.tensors[id].category] -= schedule.tensors[id].bytes;
    if (step.action.type !== 'free') later.push(...step.frees);
    return { ...now };
  });
}

export function emptyCategories(): BytesByCategory {
  return Object.fromEntries(CATEGORIES.map((c) => [c, 0])) as BytesByCategory;
}

export function sumCategories(bytes: Readonly<BytesByCategory>): number {
  return CATEGORIES.reduce((sum, c) => sum + bytes[c], 0);
}

/** Dispatches of one step of training: each has a slot in the uniform slab. */
export function countDispatches(steps: readonly Pick<Step, 'action'>[]): number {
  return steps.reduce((n, step) => n + dispatches(step.action).length, 0);
}
