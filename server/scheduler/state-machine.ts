import type { RunState } from '../contract.ts';

/** What can happen to a run. */
export type Happening =
  | 'place' // its adapters are free and its workers are being started
  | 'begin' // rank 0 reported the start
  | 'ask-stop' // a person or the shutdown asked it to stop
  | 'finish'
  | 'stop'
  | 'fail';

const TABLE: Readonly<Record<RunState, Partial<Record<Happening, RunState>>>> = {
  queued: { place: 'starting', 'ask-stop': 'stopped', fail: 'failed' },
  starting: { begin: 'running', 'ask-stop': 'stopping', finish: 'finished', stop: 'stopped', fail: 'failed' },
  running: { 'ask-stop': 'stopping', finish: 'finished', stop: 'stopped', fail: 'failed' },
  // It may have done its last step before it heard of the stop, or die of it.
  stopping: { finish: 'finished', stop: 'stopped', fail: 'failed' },
  finished: {},
  failed: {},
  stopped: {},
};

const STATES = Object.keys(TABLE) as RunState[];

/** The state that follows, or null where the happening makes no sense. */
export function nextState(state: RunState, happening: Happening): RunState | null {
  return TABLE[state][happening] ?? null;
}

/** The states in which it can happen. */
export function statesBefore(happening: Happening): RunState[] {
  return STATES.filter((state) => TABLE[state][happening] !== undefined);
}

/** Whether the run has ended for good. */
export function isFinal(state: RunState): boolean {
  return Object.keys(TABLE[state]).length === 0;
}

/** States that only a live server can keep true. */
export const ACTIVE_STATES: readonly RunState[] = STATES.filter((state) => state !== 'queued' && !isFinal(state));
