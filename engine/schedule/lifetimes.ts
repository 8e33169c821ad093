import type { Draft, DraftStep } from './draft.ts';
import { type Step, touches } from './schedule.ts';

/** First and last listed step of a tensor, both included; state lives through every step. */
export interface Life {
  readonly first: number;
  readonly last: number;
}

type DatedStep = Omit<Step, 'waits'> & Pick<DraftStep, 'after'>;

/**
 * The lifetime pass: a tensor that is not state is created by the first step that touches it and freed by the last, or by
 * the `free` step that releases it.
 */
export function withLifetimes({ tensors, steps }: Pick<Draft, 'tensors' | 'steps'>): {
  steps: DatedStep[];
  lives: Life[];
} {
  const first = new Array<number>(tensors.length).fill(-1);
  const last = new Array<number>(tensors.length).fill(-1);
  const released = new Array<number>(tensors.length).fill(-1);
  const touched = steps.map((step) => touches(step.action));
  steps.forEach((step, id) => {
    for (const { range } of touched[id]) {
      if (first[range.tensor] < 0) first[range.tensor] = id;
      last[range.tensor] = id;
    }
    for (const tensor of step.releases) released[tensor] = id;
  });
  const creates: number[][] = steps.map(() => []);
  const frees: number[][] = steps.map(() => []);
  for (const { id, state } of tensors) {
    if (state || first[id] < 0) continue;
    creates[first[id]].push(id);
    frees[Math.max(last[id], released[id])].push(id);
  }
  const dated = steps.map(({ releases: _, ...step }, id): DatedStep => {
    const ids = (wanted: (access: string) => boolean) => [
      ...new Set(touched[id].filter((t) => wanted(t.access)).map((t) => t.range.tensor)),
    ];
    return {
      ...step,
      id,
      reads: ids((access) => access !== 'write').filter((t) => !creates[id].includes(t)),
      writes: ids((access) => access !== 'read'),
      creates: creates[id],
      frees: frees[id],
    };
  });
  const lives = tensors.map(({ id, state }) =>
    state ? { first: 0, last: steps.length - 1 } : { first: first[id], last: Math.max(last[id], released[id]) },
  );
  return { steps: dated, lives };
}
