import type { RunState } from '../../../server/contract.ts';

const LOOKS: Record<RunState, { ink: string; dot: string; live: boolean }> = {
  queued: { ink: 'text-muted bg-hover', dot: 'bg-faint', live: false },
  starting: { ink: 'text-accent bg-accent-soft', dot: 'bg-accent', live: true },
  running: { ink: 'text-accent bg-accent-soft', dot: 'bg-accent', live: true },
  stopping: { ink: 'text-warn bg-warn-soft', dot: 'bg-warn', live: true },
  finished: { ink: 'text-good bg-good-soft', dot: 'bg-good', live: false },
  failed: { ink: 'text-bad bg-bad-soft', dot: 'bg-bad', live: false },
  stopped: { ink: 'text-warn bg-warn-soft', dot: 'bg-warn', live: false },
};

/** Whether a run in this state will still change by itself. */
export const isActive = (state: RunState): boolean =>
  state === 'queued' || state === 'starting' || state === 'running' || state === 'stopping';

/** A run's state as a word in its colour; the dot breathes while something goes on. */
export function StateChip({ state }: { state: RunState }) {
  const { ink, dot, live } = LOOKS[state];
  return (
    <span className={`inline-flex h-[22px] items-center gap-1.5 rounded-full px-2 text-xs font-medium ${ink}`}>
      <span
        className={`size-1.5 rounded-full ${dot} ${live ? 'motion-safe:animate-[pulse-dot_1.6s_ease-in-out_infinite]' : ''}`}
      />
      {state}
    </span>
  );
}
