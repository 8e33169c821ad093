import { describe, expect, it } from 'vitest';
import { ACTIVE_STATES, type Happening, isFinal, nextState, statesBefore } from './state-machine.ts';

const follow = (...happenings: Happening[]) =>
  happenings.reduce<ReturnType<typeof nextState>>((state, happening) => state && nextState(state, happening), 'queued');

describe('the states of a run', () => {
  it('lead from queued to an end', () => {
    expect(follow('place', 'begin', 'finish')).toBe('finished');
    expect(follow('place', 'begin', 'ask-stop', 'stop')).toBe('stopped');
    expect(follow('place', 'fail')).toBe('failed');
    expect(follow('ask-stop')).toBe('stopped');
    expect(follow('fail')).toBe('failed');
  });

  it('let a run finish that was asked to stop in its last step', () => {
    expect(follow('place', 'begin', 'ask-stop', 'finish')).toBe('finished');
  });

  it('never leave an end', () => {
    for (const state of ['finished', 'failed', 'stopped'] as const) {
      expect(isFinal(state)).toBe(true);
      for (const happening of ['place', 'begin', 'ask-stop', 'finish', 'stop', 'fail'] as const)
        expect(nextState(state, happening)).toBeNull();
    }
  });

  it('do not go back', () => {
    expect(follow('place', 'place')).toBeNull();
    expect(follow('place', 'begin', 'begin')).toBeNull();
    expect(nextState('stopping', 'ask-stop')).toBeNull();
  });

  it('say where something can happen', () => {
    expect(statesBefore('begin')).toEqual(['starting']);
    expect(statesBefore('ask-stop')).toEqual(['queued', 'starting', 'running']);
    expect(ACTIVE_STATES).toEqual(['starting', 'running', 'stopping']);
  });
});
