import { findAdapter } from '../../engine/node/adapters.ts';

/** What scheduling needs to know of an adapter. */
export interface SlotAdapter {
  readonly id: string;
  readonly name: string;
  readonly software: boolean;
}

/** The one slot of all interpreter runs: they compete for the same cores. */
export const INTERPRETER = 'interpreter';

/** Where a run's ranks go. */
export interface Placement {
  /** One id per rank; `['interpreter']` for all ranks in one process. */
  readonly adapterIds: readonly string[];
  /** The adapters that the run has to itself, each once. */
  readonly slots: readonly string[];
}

/**
 * Places a run: its ranks share one adapter, except that `auto` gives each rank its own GPU as far as there are GPUs of
 * the same name as the best one. Throws `no-adapter` that lists what there is.
 */
export function placeRun(
  config: { readonly adapter: string; readonly devices: number },
  adapters: readonly SlotAdapter[],
): Placement {
  if (config.adapter === INTERPRETER) return { adapterIds: [INTERPRETER], slots: [INTERPRETER] };
  const best = findAdapter(adapters, config.adapter);
  const alike =
    config.adapter === 'auto' && !best.software
      ? adapters.filter(({ software, name }) => !software && name === best.name)
      : [best];
  const slots = alike.slice(0, config.devices).map(({ id }) => id);
  return { adapterIds: Array.from({ length: config.devices }, (_, rank) => slots[rank % slots.length]), slots };
}

/** The first of a run's slots that another run holds, or null when it can start. `held`: slot → run. */
export function blockedBy(
  { slots }: Placement,
  held: ReadonlyMap<string, string>,
): { readonly slot: string; readonly runId: string } | null {
  for (const slot of slots) {
    const runId = held.get(slot);
    if (runId !== undefined) return { slot, runId };
  }
  return null;
}
