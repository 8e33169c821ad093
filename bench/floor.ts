import type { Cost } from '../engine/ops/kernel.ts';
import { bytesMoved } from '../engine/schedule/cost.ts';
import { kernelClass } from '../engine/schedule/rates.ts';
import type { Dispatch } from '../engine/schedule/schedule.ts';

/** What a device was seen to do at best, a second. */
export interface Rates {
  readonly bytesPerSecond: number;
  /** Products and sums of float32. */
  readonly flopsPerSecond: number;
  /** Those of halves on tensor cores; null where there are none. */
  readonly halfFlopsPerSecond: number | null;
}

/** A rate, and what was seen to have it. */
export interface Sighting {
  readonly how: string;
  readonly perSecond: number;
}

/** Milliseconds that a kernel needs at least: the longer of its arithmetic, in float32, and its bytes. */
export function floorMs({ flops, bytes }: Cost, { flopsPerSecond, bytesPerSecond }: Rates): number {
  return 1000 * Math.max(flops / flopsPerSecond, bytes / bytesPerSecond);
}

/** The same of a dispatch of a schedule: products on tensor cores at their rate, operands of halves by their own bytes. */
export function dispatchFloorMs(dispatch: Dispatch, rates: Rates): number {
  const { kernel, params } = dispatch;
  const onTensorCores = kernelClass(kernel, params) === 'tensorCores';
  const flopsPerSecond = (onTensorCores && rates.halfFlopsPerSecond) || rates.flopsPerSecond;
  return floorMs({ flops: kernel.cost(params).flops, bytes: bytesMoved(dispatch) }, { ...rates, flopsPerSecond });
}

/** The highest rate of a list. Throws RangeError on an empty one. */
export function highest(sightings: readonly Sighting[]): number {
  if (sightings.length === 0) throw new RangeError('no rate was measured');
  return Math.max(...sightings.map(({ perSecond }) => perSecond));
}

/** "  memory   3.75 TB/s by copy (read 3.70, torch's copy 3.60)": the highest first, then the others as they came. */
export function sightingLine(of: string, sightings: readonly Sighting[], word: string): string {
  const most = highest(sightings);
  const [unit, prefix] = most >= 1e12 ? [1e12, 'T'] : [1e9, 'G'];
  const figure = (perSecond: number) => {
    const value = perSecond / unit;
    return value < 100 ? value.toPrecision(3) : value.toFixed(0);
  };
  const best = sightings.find(({ perSecond }) => perSecond === most)!;
  const others = sightings.filter((each) => each !== best).map(({ how, perSecond }) => `${how} ${figure(perSecond)}`);
  const also = others.length ? ` (${others.join(', ')})` : '';
  return `  ${of.padEnd(8)} ${figure(most)} ${prefix}${word} by ${best.how}${also}`;
}

/** A figure to torch's: "0.83", or nothing without torch. */
export function ratioTo(theirs: number | null | undefined, ours: number): string {
  return theirs ? (ours / theirs).toFixed(2) : '';
}
