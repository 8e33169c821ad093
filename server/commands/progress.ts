import { counted } from '../../engine/counted.ts';
import type { RunEvent } from '../../engine/trainer/events.ts';
import { printableLines } from './output.ts';
import { mib } from './sizes.ts';

/** A terminal gets one line that changes; a file or pipe gets a line now and then. */
const TERMINAL_MS = 100;
const PIPE_MS = 5000;

/** Prints how a run goes on, for a person. */
export class Progress {
  readonly #out: NodeJS.WriteStream;
  readonly #steps: number;
  readonly #summaries: boolean;
  readonly #startedMs = performance.now();
  #firstStepMs: number | null = null;
  #printedMs = Number.NEGATIVE_INFINITY;
  #open = false;

  /** `summaries`: whether the ranks' memory tables, which are long, are printed. */
  constructor(out: NodeJS.WriteStream, { steps, summaries }: { steps: number; summaries: boolean }) {
    this.#out = out;
    this.#steps = steps;
    this.#summaries = summaries;
  }

  show(event: RunEvent): void {
    if (event.event === 'start') {
      const names = [...new Set(event.adapters.map(({ name, software }) => (software ? `${name} (software)` : name)))];
      this.#line(
        `${event.params.toLocaleString('en')} parameters, ${counted(event.world, 'rank')} on ${names.join(', ')}; ` +
          `predicted ${mib(event.predicted.peakBytes)} reserved and ${mib(event.predicted.liveBytes)} live on the fullest rank`,
      );
    } else if (event.event === 'log') {
      this.#line(event.rank === null ? event.line : `rank ${event.rank}: ${event.line}`);
    } else if (event.event === 'checkpoint') {
      this.#line(`checkpoint ${event.path} (step ${event.step}, sha256 ${event.sha256.slice(0, 12)}…)`);
    } else if (event.event === 'validation') {
      this.#line(`validation after step ${event.step + 1}: loss ${word(event.loss)}`);
    } else if (event.event === 'summary') {
      if (this.#summaries) this.#line(`memory of rank ${event.rank}\n${event.text}`);
    } else if (event.event === 'step' && event.rank === 0) {
      this.#step(event);
    } else if (event.event === 'end') {
      const seconds = ((performance.now() - this.#startedMs) / 1000).toFixed(1);
      this.#line(
        event.error
          ? `failed after ${seconds} s: ${event.error.message}`
          : `${event.status} after ${seconds} s; most reserved ${mib(Math.max(0, ...event.peakBytesByRank))}`,
      );
    }
  }

  #step(event: Extract<RunEvent, { event: 'step' }>): void {
    const now = performance.now();
    this.#firstStepMs ??= now;
    const done = event.step + 1;
    const last = done === this.#steps;
    if (!last && now - this.#printedMs < (this.#out.isTTY ? TERMINAL_MS : PIPE_MS)) return;
    this.#printedMs = now;
    const left = done > 1 ? ((now - this.#firstStepMs) / (done - 1)) * (this.#steps - done) : null;
    const text =
      `${done} of ${counted(this.#steps, 'step')} done  loss ${word(event.lossMean)}  ${event.iterationMs.toFixed(1)} ms  ` +
      `${mib(event.memory.peakBytes)} reserved${left === null || last ? '' : `  ${Math.ceil(left / 1000)} s left`}`;
    if (!this.#out.isTTY) {
      this.#out.write(`${text}\n`);
      return;
    }
    this.#out.write(`\r\x1b[2K${text}`);
    this.#open = true;
  }

  #line(text: string): void {
    this.#out.write(`${this.#open ? '\n' : ''}${printableLines(text)}\n`);
    this.#open = false;
  }
}

function word(value: number | string): string {
  return typeof value === 'number' ? value.toFixed(4) : value;
}
