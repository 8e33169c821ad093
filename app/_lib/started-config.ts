import type { StartUse } from './checkpoint-ref.ts';
import { type Draft, toDraft, valueAt, withValue } from './config-draft.ts';

/** What a run starts from: a path in the data folder and, where it is known, how many steps were done there. */
export interface Start {
  readonly use: StartUse;
  readonly path: string;
  readonly step: number;
}

/**
 * A config that starts from a checkpoint; what it started from before counts no more. One that goes on has steps left:
 * twice those that are done, if its own are.
 */
export function startingFrom(config: Draft, { use, path, step }: Start): Draft {
  if (use === 'init') return withValue(withValue(config, 'checkpoint.resume', null), 'init.from', path);
  const steps = valueAt(toDraft(config), 'trainer.steps');
  const left = typeof steps === 'number' && steps > step;
  const more = left ? config : withValue(config, 'trainer.steps', 2 * Math.max(step, 1));
  return withValue(withValue(more, 'init.from', null), 'checkpoint.resume', path);
}

/** "demo" → "demo-2" → "demo-3". */
export function nextName(name: string): string {
  const [, stem, number] = /^(.*?)(?:-(\d{1,4}))?$/.exec(name) ?? [];
  return stem ? `${stem}-${Number(number ?? 1) + 1}` : `${name}-2`;
}
