import type { CompiledRun } from '../engine/schedule/compile.ts';
import type { Action, Step } from '../engine/schedule/schedule.ts';

/** So many machines of so many ranks, which are neighbours: a mesh for HYBRID_SHARD, whose rows they are. */
export const MACHINES: [number, number] = [2, 2];

type Collect = Extract<Action, { type: 'collect' }>;

function machineOf(rank: number): number {
  return Math.floor(rank / MACHINES[1]);
}

/** Bytes that a collect takes from ranks of other machines. */
function crossingBytes({ peers, bytesPerPeer }: Collect, rank: number): number {
  return bytesPerPeer * peers.filter((peer) => machineOf(peer) !== machineOf(rank)).length;
}

/** A run whose ranks lie on MACHINES, whatever its strategy: what comes from another machine passes a link. */
export function acrossTheLink(run: CompiledRun, linkGBps: number): CompiledRun {
  const steps = run.steps.map((compiled) => {
    const { schedule } = compiled;
    const changed = schedule.steps.map((step): Step => {
      if (step.action.type !== 'collect') return step;
      const crossing = crossingBytes(step.action, schedule.rank);
      // All that a collect takes passes at one rate: such a one that only what crosses takes its time.
      const rate = crossing === 0 ? null : (linkGBps * step.action.staging.bytes) / crossing;
      return { ...step, action: { ...step.action, linkGBps: rate } };
    });
    return { ...compiled, schedule: { ...schedule, steps: changed } };
  });
  return { ...run, steps };
}

/** Bytes a step that one rank takes from other machines. */
export function linkBytes({ steps: [{ schedule }] }: CompiledRun): number {
  return schedule.steps.reduce(
    (sum, { action }) => sum + (action.type === 'collect' ? crossingBytes(action, schedule.rank) : 0),
    0,
  );
}
