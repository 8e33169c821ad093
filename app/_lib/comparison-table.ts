import { CATEGORIES } from '../../engine/schedule/schedule.ts';
import type { Comparison } from '../../server/contract.ts';
import { flatten, formatConfigValue } from './config-draft.ts';
import { toCsv } from './csv.ts';
import { simulatedLinkGBps } from './simulated-link.ts';

export type ComparedRun = Comparison['runs'][number];

/** The config fields in which runs differ, with each run's value as text, in the order of `runs`. */
export function differingFields({ runs, differing }: Comparison): { path: string; values: string[] }[] {
  const leaves = runs.map(({ config }) => flatten(config));
  // `differing` may name a section whose kinds differ; its fields are then listed one by one.
  const paths = differing.flatMap((path) => {
    if (leaves.some((of) => of.has(path))) return [path];
    return [...new Set(leaves.flatMap((of) => [...of.keys()].filter((leaf) => leaf.startsWith(`${path}.`))))];
  });
  return [...new Set(paths)]
    .map((path) => ({ path, values: leaves.map((of) => formatConfigValue(of.get(path))) }))
    .filter(({ values }) => new Set(values).size > 1)
    .sort((a, b) => rankOf(a.path) - rankOf(b.path));
}

/** What a section is comes before what it has; else the order stays. */
const rankOf = (path: string): number => (/(^|\.)(kind|shardingStrategy)$/.test(path) ? 0 : 1);

/** The comparison as CSV: one row a run, then (wide form) the mean loss of every step. */
export function comparisonCsv(comparison: Comparison): string {
  const { runs } = comparison;
  const fields = differingFields(comparison);
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
    'timed steps',
    'last mean loss',
    ...(isLinked ? ['simulated link (GB/s)'] : []),
    ...fields.map(({ path }) => path),
  ];
  const { timedSteps } = comparison;
  const timed = timedSteps === null ? null : `${timedSteps.first} to ${timedSteps.last}`;
  const rows = runs.map(({ run, peakBytes, liveBytes, byCategory, iterationMs, lossMeans }, i) => [
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
    timed,
    lossMeans.at(-1) ?? null,
    ...(isLinked ? [links[i]] : []),
    ...fields.map(({ values }) => values[i]),
  ]);
  const columns = runs.map(
    ({ lossMeans, lossStride }) => new Map(lossMeans.map((loss, i) => [i * lossStride, loss] as const)),
  );
  const steps = [...new Set(columns.flatMap((column) => [...column.keys()]))].sort((a, b) => a - b);
  const losses = steps.map((step) => [step, ...columns.map((column) => column.get(step) ?? null)]);
  return `${toCsv([head, ...rows])}\r\n${toCsv([['step', ...runs.map(({ run }) => `mean loss of ${run.name}`)], ...losses])}`;
}
