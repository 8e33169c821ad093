import { ratioTo } from './floor.ts';

/** A variant of a product of halves: with results in float32 and in halves, where it has them, and torch's, in halves. */
export interface HalfRow {
  readonly name: string;
  readonly variant: string;
  readonly flops: number;
  readonly floorMs: number;
  readonly f32Ms: number | null;
  readonly f16Ms: number | null;
  readonly torchMs: number | null;
  readonly words: string;
}

const WIDTHS = [32, 28, 8, 8, 8, 8, 6, 8, 8, 6];
const HEADER = [
  ...['product (*: the engine takes it)', 'variant'],
  ...['f32: us', 'TFLOP/s', 'f16: us', 'TFLOP/s', 'of it', 'torch us', 'TFLOP/s', 'ratio'],
];

export function halfHeader(): string {
  return line(HEADER);
}

/** A row. `of it`: the floor's part of the time with results in halves; `ratio`: that time to torch's. */
export function halfLine({ name, variant, flops, floorMs, f32Ms, f16Ms, torchMs, words }: HalfRow): string {
  const figures = (ms: number | null) =>
    ms === null ? ['', ''] : [(1000 * ms).toFixed(0), (flops / ms / 1e9).toFixed(1)];
  const part = f16Ms === null ? '' : `${((100 * floorMs) / f16Ms).toFixed(0)} %`;
  const ratio = f16Ms === null ? '' : ratioTo(torchMs, f16Ms);
  return `${line([name, variant, ...figures(f32Ms), ...figures(f16Ms), part, ...figures(torchMs), ratio])}  ${words}`;
}

function line(cells: readonly string[]): string {
  return cells.map((cell, i) => (i < 2 ? cell.padEnd(WIDTHS[i]) : cell.padStart(WIDTHS[i]))).join(' ');
}
