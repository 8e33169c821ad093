import { CATEGORIES } from '../../engine/schedule/schedule.ts';
import type { Comparison } from '../../server/contract.ts';
import { flatten, formatConfigValue, withoutDefaults } from './config-draft.ts';
import { toCsv } from './csv.ts';
import { simulatedLinkGBps } from './simulated-link.ts';

export type ComparedRun = Comparison['runs'][number];

/** A config field in which runs differ, with each run's value as text, in the order of `runs`. */
export interface DifferingField {
  readonly path: string;
  readonly values: readonly string[];
}

/**
 * The config fields in which runs differ. `aside` are those that decide neither what is computed nor what it costs: names, what
 * is saved and how, and what only one run's kind of section has and it left at its default.
 */
export function differingFields({ runs, differing }: Comparison): {
  telling: DifferingField[];
  aside: DifferingField[];
} {
  const leaves = runs.map(({ config }) => flatten(config));
  const written = runs.map(({ config }) => flatten(withoutDefaults(config as Parameters<typeof withoutDefaults>[0])));
  // `differing` may name a section whose kinds differ; its fields are then listed one by one.
  const paths = differing.flatMap((path) => {
    if (leaves.some((of) => of.has(path))) return [path];
    return [...new Set(leaves.flatMap((of) => [...of.keys()].filter((leaf) => leaf.startsWith(`${path}.`))))];
  });
  const isDefaultOfOneKind = (path: string) =>
    leaves.some((of) => !of.has(path)) && written.every((of) => !of.has(path)) && rankOf(path) > 0;
  const fields = [...new Set([...paths, 'name'])]
    .map((path) => ({ path, values: leaves.map((of) => formatConfigValue(of.get(path))) }))
    .filter(({ values }) => new Set(values).size > 1)
    .sort((a, b) => rankOf(a.path) - rankOf(b.path));
  const isAside = ({ path }: DifferingField) =>
    path === 'name' || (path.startsWith('checkpoint.') && path !== 'checkpoint.resume') || isDefaultOfOneKind(path);
  return { telling: fields.filter((field) => !isAside(field)), aside: fields.filter(isAside) };
}

/** What a section is comes before what it has; else the order stays. */
const rankOf = (path: string): number => (/(^|\.)(kind|shardingStrategy)$/.test(path) ? 0 : 1);

/** The mean losses of runs over the steps that all of them have which have any. */
export interface CommonLosses {
  readonly steps: number;
  readonly last: number;
  /** At step `last`, by run; null for one that has no step yet. */
  readonly atLast: readonly (ComparedRun['lossMeans'][number] | null)[];
  /** Whether they are the same number, bit for bit, at every one of these steps. */
  readonly equal: boolean;
}

/** Null where no step is common to all, or only one run has any. */
export function commonLosses(runs: readonly ComparedRun[]): CommonLosses | null {
  const columns = runs.map(lossesByStep);
  const begun = columns.filter(({ size }) => size > 0);
  if (begun.length < 2) return null;
  const [fewest, ...others] = [...begun].sort((a, b) => a.size - b.size);
  const steps = [...fewest.keys()].filter((step) => others.every((other) => other.has(step)));
  if (!steps.length) return null;
  const last = steps[steps.length - 1];
  return {
    steps: steps.length,
    last,
    atLast: columns.map((column) => column.get(last) ?? null),
    equal: steps.every((step) => others.every((other) => other.get(step) === fewest.get(step))),
  };
}

function lossesByStep({ lossMeans, lossStride, lossFrom }: ComparedRun) {
  return new Map(lossMeans.map((loss, i) => [lossFrom + i * lossStride, loss] as const));
}

/** The comparison as CSV: one row a run, then (wide form) the mean loss of every step. */
export function comparisonCsv(comparison: Comparison): string {
  const { runs } = comparison;
  const { telling, aside } = differingFields(comparison);
  const fields = [...telling, ...aside].filter(({ path }) => path !== 'name');
  const links = runs.map(({ config }) => simulatedLinkGBps(config));
  const isLinked = links.some((rate) => rate !== null);
  const head = [
    'run',
    'id',
    'state',
    'strategy',
    'ranks',
    'adapter',
    'steps done',
    'reserved peak (bytes)',
    'live peak (bytes)',
    ...CATEGORIES.map((category) => `live ${category} (bytes)`),
    'iteration time (ms)',
    'quickest (ms)',
    'slowest (ms)',
    'timed steps',
    'last mean loss',
    ...(isLinked ? ['simulated link (GB/s)'] : []),
    ...fields.map(({ path }) => path),
  ];
  const { timedSteps } = comparison;
  const timed = timedSteps === null ? null : `${timedSteps.first} to ${timedSteps.last}`;
  const rows = runs.map(({ run, peakBytes, liveBytes, byCategory, iterationMs, iterationSpread, lossMeans }, i) => [
    run.name,
    run.id,
    run.state,
    run.strategy,
    run.devices,
    run.adapter,
    run.stepsDone,
    peakBytes,
    liveBytes,
    ...CATEGORIES.map((category) => byCategory?.[category] ?? null),
    iterationMs,
    iterationSpread?.minMs ?? null,
    iterationSpread?.maxMs ?? null,
    timed,
    lossMeans.at(-1) ?? null,
    ...(isLinked ? [links[i]] : []),
    ...fields.map(({ values }) => values[i]),
  ]);
  const columns = runs.map(lossesByStep);
  const steps = [...new Set(columns.flatMap((column) => [...column.keys()]))].sort((a, b) => a - b);
  const losses = steps.map((step) => [step, ...columns.map((column) => column.get(step) ?? null)]);
  return `${toCsv([head, ...rows])}\r\n${toCsv([['step', ...runs.map(({ run }) => `mean loss of ${run.name}`)], ...losses])}`;
}
