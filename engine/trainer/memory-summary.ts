import type { CompiledRun } from '../schedule/compile.ts';
import type { MeasuredMemory } from '../schedule/rank-engine.ts';
import { CATEGORIES, type Tensor } from '../schedule/schedule.ts';
import { FreeRanges } from './free-ranges.ts';
import { Meter, PooledMeter, type Stat } from './memory-stats.ts';

const MiB = 2 ** 20;
/** PyTorch's caching allocator serves requests below this from its small pool … */
const SMALL_TENSOR_BYTES = MiB;
/** … whose segments are this large; its large pool's are larger. */
const SMALL_BUFFER_BYTES = 2 * MiB;

/** One line of numbers. The unit of each column is chosen by `unitOf`, so that lines of one metric share theirs. */
export interface Row {
  readonly label: string;
  readonly of: 'bytes' | 'count';
  readonly stat: Stat;
  readonly unitOf: Stat;
}

export interface Table {
  readonly heading: readonly string[];
  readonly firstColumn: string;
  /** Rows between two rules. */
  readonly groups: readonly (readonly Row[])[];
}

/**
 * torch.cuda.memory_summary() of one rank's WebGPU buffers after `stepsDone` steps, and below it the same four columns by
 * category of the schedule. An array counts the steps of each batch shape of the run; a number those of its first.
 *
 * The form is PyTorch's to the byte; where PyTorch names CUDA it says what is counted here: "WebGPU buffers of this
 * worker", "GPU OOMs", "allocation retries". PyTorch's words mean, on this engine: allocated, active and requested are all
 * live tensors of the schedule (nothing is rounded, nothing outlives its step; the small pool is those below 1 MiB);
 * reserved are the buffers held and segments their number (small: below 2 MiB); non-releasable is what of those buffers no
 * live tensor covers (alignment and the uniforms of the dispatches included), by the buffer's pool. Current is the state
 * between steps. A category's peak is its own: the peaks need not fall on one step, nor add up.
 */
export function memorySummary(
  run: CompiledRun,
  stepsDone: number | readonly number[],
  measured: MeasuredMemory,
  device: { readonly id: number; readonly name: string },
): string {
  const stepsByShape = typeof stepsDone === 'number' ? [stepsDone] : stepsDone;
  const counted = count(run, stepsByShape);
  const { tensorBytes, tensors, freeBytes, freeRanges, categories } = counted;
  const [reserved, segments] = held(run, measured);
  const none = new Meter();
  const main: Table = {
    heading: heading(WEBGPU, { device: device.id, ooms: measured.ooms, retries: measured.allocRetries }),
    firstColumn: METRIC,
    groups: [
      pooled('Allocated memory', 'bytes', tensorBytes),
      pooled('Active memory', 'bytes', tensorBytes),
      pooled('Requested memory', 'bytes', tensorBytes),
      pooled('GPU reserved memory', 'bytes', reserved),
      pooled('Non-releasable memory', 'bytes', freeBytes),
      pooled('Allocations', 'count', tensors),
      pooled('Active allocs', 'count', tensors),
      pooled('GPU reserved segments', 'count', segments),
      pooled('Non-releasable allocs', 'count', freeRanges),
      [single('Oversize allocations', 'count', none)],
      [single('Oversize GPU segments', 'count', none)],
    ],
  };
  const byCategory: Table = {
    heading: [centred(`By category, on ${device.name}`)],
    firstColumn: 'Category',
    groups: [CATEGORIES.map((category) => single(category, 'bytes', categories[category]))],
  };
  return renderTable(main) + renderTable(byCategory);
}

/** Walks through set-up and, once for each batch shape, a step, and meters every tensor that comes and goes. */
function count(run: CompiledRun, stepsByShape: readonly number[]) {
  const tensorBytes = new PooledMeter();
  const tensors = new PooledMeter();
  const categories = Object.fromEntries(CATEGORIES.map((c) => [c, new Meter()])) as Record<
    (typeof CATEGORIES)[number],
    Meter
  >;
  const free = run.memory.slabs.map((slab) => new FreeRanges(slab.bytes));
  const comes = (t: Tensor, times: number) => {
    const small = t.bytes < SMALL_TENSOR_BYTES;
    tensorBytes.add(small, t.bytes, times);
    tensors.add(small, 1, times);
    categories[t.category].add(t.bytes, times);
  };
  const goes = (t: Tensor, times: number) => {
    const small = t.bytes < SMALL_TENSOR_BYTES;
    tensorBytes.remove(small, t.bytes, times);
    tensors.remove(small, 1, times);
    categories[t.category].remove(t.bytes, times);
  };

  const state = new Set<string>();
  for (const { schedule, placements } of run.steps)
    for (const t of schedule.tensors) {
      // Batch shapes share state by name.
      if (!t.state || state.has(t.name)) continue;
      state.add(t.name);
      comes(t, 1);
      free[placements[t.id].slab].take(placements[t.id].offsetBytes, t.bytes);
    }
  const freeBytes = new PooledMeter();
  const freeRanges = new PooledMeter();
  const isSmall = run.memory.slabs.map((slab) => slab.bytes < SMALL_BUFFER_BYTES);
  free.forEach((ranges, slab) => {
    for (const bytes of ranges.sizes()) {
      freeBytes.add(isSmall[slab], bytes);
      freeRanges.add(isSmall[slab], 1);
    }
  });
  run.steps.forEach(({ schedule, placements }, shape) => {
    const times = stepsByShape[shape] ?? 0;
    if (times === 0) return;
    const change = (id: number, how: 'take' | 'give') => {
      const { slab, offsetBytes } = placements[id];
      const { gone, made } = free[slab][how](offsetBytes, schedule.tensors[id].bytes);
      for (const bytes of gone) {
        freeBytes.remove(isSmall[slab], bytes, times);
        freeRanges.remove(isSmall[slab], 1, times);
      }
      for (const bytes of made) {
        freeBytes.add(isSmall[slab], bytes, times);
        freeRanges.add(isSmall[slab], 1, times);
      }
    };
    for (const { creates, frees } of schedule.steps) {
      for (const id of creates) {
        comes(schedule.tensors[id], times);
        change(id, 'take');
      }
      for (const id of frees) {
        goes(schedule.tensors[id], times);
        change(id, 'give');
      }
    }
  });
  return { tensorBytes, tensors, freeBytes, freeRanges, categories };
}

/** The buffers held: bytes as they were measured, split by the plan's buffers, and their number. */
function held(run: CompiledRun, { currentBytes, peakBytes }: MeasuredMemory): [PooledMeter, PooledMeter] {
  const bytes = new PooledMeter();
  const buffers = new PooledMeter();
  let small = 0;
  for (const slab of run.memory.slabs) {
    const isSmall = slab.bytes < SMALL_BUFFER_BYTES;
    buffers.add(isSmall, 1);
    if (isSmall) small += slab.bytes;
  }
  small = Math.min(small, currentBytes);
  bytes.add(true, small);
  bytes.add(false, peakBytes - small);
  bytes.remove(false, peakBytes - currentBytes);
  return [bytes, buffers];
}

/** What the heading calls things: PyTorch's words, or ours for the same. */
export interface HeadingWords {
  readonly title: string;
  readonly ooms: string;
  readonly retries: string;
}

const WEBGPU: HeadingWords = {
  title: 'WebGPU buffers of this worker',
  ooms: 'GPU OOMs',
  retries: 'allocation retries',
};
export const PYTORCH: HeadingWords = {
  title: 'PyTorch CUDA memory summary',
  ooms: 'CUDA OOMs',
  retries: 'cudaMalloc retries',
};

export const METRIC = 'Metric';

/** The two lines above the numbers. Words of any width up to 45, 21 and 26 leave the columns where PyTorch has them. */
export function heading(
  words: HeadingWords,
  { device, ooms, retries }: { readonly device: number; readonly ooms: number; readonly retries: number },
): string[] {
  return [
    `${words.title.padStart(45)}, device ID ${String(device).padEnd(17)} `,
    `${words.ooms.padStart(21)}: ${String(ooms).padEnd(12)} |` +
      `${words.retries.padStart(26)}: ${String(retries).padEnd(8)}  `,
  ];
}

/** The three lines of a metric: all, and by pool, in the units of all. */
export function pooled(label: string, of: Row['of'], stats: Pooled): Row[] {
  const unitOf = stats.all;
  return [
    { label, of, stat: stats.all, unitOf },
    { label: '      from large pool', of, stat: stats.large, unitOf },
    { label: '      from small pool', of, stat: stats.small, unitOf },
  ];
}

type Pooled = Readonly<Record<'all' | 'large' | 'small', Stat>>;

/** A metric of one line. */
export function single(label: string, of: Row['of'], stat: Stat): Row {
  return { label, of, stat, unitOf: stat };
}

const WIDTH = 75;

function centred(text: string): string {
  const cut = text.length > WIDTH - 2 ? `${text.slice(0, WIDTH - 3)}…` : text;
  return cut.padStart(Math.ceil((WIDTH + cut.length) / 2)).padEnd(WIDTH);
}

/**
 * A table as torch.cuda.memory_summary() prints it, newline at its end: 77 columns, numbers rounded down, each column of a
 * group in the largest unit that leaves the group's first number below 768 Ki (counts: below 750 thousand) or a step more.
 */
export function renderTable({ heading, firstColumn, groups }: Table): string {
  const rule = '-'.repeat(WIDTH);
  const end = '='.repeat(WIDTH);
  const columns = ['Cur Usage', 'Peak Usage', 'Tot Alloc', 'Tot Freed'].map((name) => centredIn(name, 12)).join('|');
  const lines = [
    end,
    ...heading.flatMap((line, i) => (i === 0 ? [line] : [rule, line])),
    end,
    `${centredIn(firstColumn, 23)}|${columns}`,
    ...groups.flatMap((rows) => [rule, ...rows.map(renderRow)]),
    end,
  ];
  return lines.map((line) => `|${line}|\n`).join('');
}

/** Centred as Python's format does: the odd space on the right. */
function centredIn(text: string, width: number): string {
  return text.padStart(Math.floor((width + text.length) / 2)).padEnd(width);
}

function renderRow({ label, of, stat, unitOf }: Row): string {
  const format = of === 'bytes' ? bytesIn : countIn;
  const cells = (['current', 'peak', 'allocated', 'freed'] as const).map((c) => format(stat[c], unitOf[c]));
  return ` ${[label.padEnd(21), ...cells].join(' | ')} `;
}

function bytesIn(bytes: number, reference: number): string {
  const [value, unit] = scale(bytes, reference, ['B  ', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'], 1024, 768 * 1024);
  return `${String(value).padStart(6)} ${unit}`;
}

function countIn(count: number, reference: number): string {
  const [value, unit] = scale(count, reference, [' ', 'K', 'M'], 1000, 750 * 1000);
  return `${String(value).padStart(7)} ${unit} `;
}

function scale(value: number, reference: number, units: string[], step: number, limit: number): [number, string] {
  let power = 0;
  for (let left = reference; left >= limit && power < units.length - 1; left /= step) power++;
  return [Math.floor(value / step ** power), units[power]];
}
