import { StudioError } from '../errors.ts';
import { type BytesByCategory, emptyCategories } from './memory.ts';
import type { Category, Schedule } from './schedule.ts';

/** What a step says of a tensor that it touches. */
export interface TouchedTensor {
  readonly name: string;
  readonly category: Category;
  readonly bytes: number;
}

/** The bytes that a command really touched. */
export interface TouchedRange {
  readonly buffer: number;
  readonly offsetBytes: number;
  readonly bytes: number;
}

interface MeasuredLife extends TouchedTensor {
  first: number;
  last: number;
  ranges: TouchedRange[];
}

/** Step of a touch made before step 0, while parameters and tables are filled. */
export const SET_UP = -1;

/**
 * Measures memory from what was touched, not from the plan: every binding and copy is filed under its step, with the
 * tensor as the step names it and the range as the command has it. A tensor lives from its first to its last touch in an
 * iteration; one that was touched during set-up lives throughout.
 */
export class Recorder {
  private readonly state = new Map<string, MeasuredLife>();
  private iterations: Map<string, MeasuredLife>[] = [];

  /** Files a touch. `iteration` counts training steps from 0; `step` is the schedule's, or SET_UP. */
  touch(iteration: number, step: number, tensor: TouchedTensor, range: TouchedRange): void {
    if (step === SET_UP || this.state.has(tensor.name)) this.file(this.state, SET_UP, tensor, range);
    if (step === SET_UP) return;
    this.iterations[iteration] ??= new Map();
    this.file(this.iterations[iteration], step, tensor, range);
  }

  /** Drops what was filed of iterations before this one, so that a long run does not grow. */
  forgetBefore(iteration: number): void {
    for (let i = 0; i < iteration; i++) delete this.iterations[i];
  }

  /** Live bytes at each of `steps` steps of an iteration, by category. */
  liveBytes(iteration: number, steps: number): BytesByCategory[] {
    const lives = this.livesOf(iteration);
    return Array.from({ length: steps }, (_, step) => {
      const now = emptyCategories();
      for (const life of this.state.values()) now[life.category] += life.bytes;
      for (const life of lives) if (life.first <= step && step <= life.last) now[life.category] += life.bytes;
      return now;
    });
  }

  /**
   * Throws StudioError `invalid-schedule` when a tensor was touched outside its planned life, or when two tensors alive at
   * the same time were touched on one range.
   */
  check(iteration: number, schedule: Pick<Schedule, 'tensors' | 'steps'>): void {
    const planned = plannedLives(schedule);
    const lives = this.livesOf(iteration);
    for (const life of lives) {
      const plan = planned.get(life.name);
      if (!plan || life.first < plan.first || life.last > plan.last)
        throw new StudioError(
          'invalid-schedule',
          `${life.name} was touched in steps ${life.first} to ${life.last}, planned ${plan ? `${plan.first} to ${plan.last}` : 'never'}`,
        );
    }
    const whole = [...this.state.values()].map((s) => ({ ...s, first: 0, last: Number.MAX_SAFE_INTEGER }));
    refuseOverlaps([...whole, ...lives]);
  }

  private livesOf(iteration: number): MeasuredLife[] {
    const lives = this.iterations[iteration];
    if (!lives) throw new StudioError('internal', `nothing was recorded of step ${iteration}`);
    return [...lives.values()].filter((life) => !this.state.has(life.name));
  }

  private file(lives: Map<string, MeasuredLife>, step: number, tensor: TouchedTensor, range: TouchedRange): void {
    const life = lives.get(tensor.name);
    if (!life) {
      lives.set(tensor.name, { ...tensor, first: step, last: step, ranges: [range] });
      return;
    }
    life.first = Math.min(life.first, step);
    life.last = Math.max(life.last, step);
    if (
      !life.ranges.some(
        (r) => r.buffer === range.buffer && r.offsetBytes === range.offsetBytes && r.bytes === range.bytes,
      )
    )
      life.ranges.push(range);
  }
}

function plannedLives({
  tensors,
  steps,
}: Pick<Schedule, 'tensors' | 'steps'>): Map<string, { first: number; last: number }> {
  const lives = new Map<string, { first: number; last: number }>();
  for (const t of tensors) if (t.state) lives.set(t.name, { first: 0, last: steps.length - 1 });
  for (const step of steps) {
    for (const id of step.creates) lives.set(tensors[id].name, { first: step.id, last: step.id });
    for (const id of step.frees) lives.get(tensors[id].name)!.last = step.id;
  }
  return lives;
}

function refuseOverlaps(lives: readonly MeasuredLife[]): void {
  const ranges = lives.flatMap((life) => life.ranges.map((range) => ({ life, range })));
  ranges.sort((a, b) => a.range.buffer - b.range.buffer || a.range.offsetBytes - b.range.offsetBytes);
  ranges.forEach((a, i) => {
    for (let j = i + 1; j < ranges.length; j++) {
      const b = ranges[j];
      if (b.range.buffer !== a.range.buffer || b.range.offsetBytes >= a.range.offsetBytes + a.range.bytes) break;
      const together = a.life.first <= b.life.last && b.life.first <= a.life.last;
      if (together && a.life !== b.life)
        throw new StudioError('invalid-schedule', `${a.life.name} and ${b.life.name} were alive together on one range`);
    }
  });
}
