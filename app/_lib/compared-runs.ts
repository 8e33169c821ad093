import type { Run, RunSummary } from '../../server/contract.ts';

/**
 * The ids to compare a run with, itself among them, oldest first: the run that it continues, as long as that is there, or
 * else those that were queued together with it. Of `runs`, which are newest first.
 */
export function comparedWith(
  { id, parent, group }: Pick<Run, 'id' | 'parent' | 'group'>,
  runs: readonly Pick<RunSummary, 'id' | 'group'>[],
): string[] {
  if (runs.some((run) => run.id === parent)) return [parent as string, id];
  const together = group === null ? [] : runs.filter((run) => run.group === group);
  return together.map((run) => run.id).reverse();
}
