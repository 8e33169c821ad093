/** What torch.cuda.memory_stats keeps of one quantity: now, most ever, and all that was ever added and taken away. */
export interface Stat {
  readonly current: number;
  readonly peak: number;
  readonly allocated: number;
  readonly freed: number;
}

/** A quantity in all and in each of the two pools of PyTorch's allocator. */
export interface PooledStat {
  readonly all: Stat;
  readonly large: Stat;
  readonly small: Stat;
}

/** Keeps a Stat. `times`: how often what is metered once has happened, each time from the same start. */
export class Meter implements Stat {
  current = 0;
  peak = 0;
  allocated = 0;
  freed = 0;

  add(amount: number, times = 1): void {
    this.current += amount;
    this.peak = Math.max(this.peak, this.current);
    this.allocated += amount * times;
  }

  remove(amount: number, times = 1): void {
    this.current -= amount;
    this.freed += amount * times;
  }
}

/** Keeps a PooledStat. */
export class PooledMeter implements PooledStat {
  readonly all = new Meter();
  readonly large = new Meter();
  readonly small = new Meter();

  add(isSmall: boolean, amount: number, times = 1): void {
    this.all.add(amount, times);
    (isSmall ? this.small : this.large).add(amount, times);
  }

  remove(isSmall: boolean, amount: number, times = 1): void {
    this.all.remove(amount, times);
    (isSmall ? this.small : this.large).remove(amount, times);
  }
}
