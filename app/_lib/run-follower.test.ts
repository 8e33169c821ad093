import { describe, expect, it } from 'vitest';
import { type EventSlice, RunFollower } from './run-follower.ts';
import type { SequencedEvent } from './run-log.ts';

const line = (seq: number): SequencedEvent => ({ seq, event: 'log', rank: null, line: `line ${seq}` });
const all = (count: number) => Array.from({ length: count }, (_, i) => line(i + 1));

/** A server with `known` events and pages of three, a hint to send by hand and a timer to fire by hand. */
function scene(known: number) {
  const server = { known, asked: [] as number[], fail: 0, delay: null as Promise<void> | null };
  let hint: (lastSeq: number | null) => void = () => {};
  let timer: { callback: () => void; ms: number } | null = null;
  const follower = new RunFollower({
    async fetchPage(afterSeq): Promise<EventSlice> {
      server.asked.push(afterSeq);
      await server.delay;
      if (server.fail-- > 0) throw new Error('connection lost');
      const events = all(server.known).slice(afterSeq, afterSeq + 3);
      return { events, lastSeq: server.known };
    },
    onHint(callback) {
      hint = callback;
      return () => {};
    },
    setTimer(callback, ms) {
      timer = { callback, ms };
      return () => {
        timer = null;
      };
    },
  });
  const settle = () => new Promise<void>((resolve) => setTimeout(resolve, 0));
  return { server, follower, settle, hint: (seq: number | null) => hint(seq), timer: () => timer };
}

const seqs = (follower: RunFollower) => follower.log.lines.map(({ seq }) => seq);

describe('following a run', () => {
  it('pulls pages until it has caught up', async () => {
    const { follower, server, settle } = scene(8);
    follower.start();
    await settle();
    expect(seqs(follower)).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
    expect(server.asked).toEqual([0, 3, 6]);
    expect(follower.caughtUp).toBe(true);
  });

  it('takes many hints at once without one event twice or a hole', async () => {
    const { follower, server, settle, hint } = scene(2);
    follower.start();
    await settle();
    server.known = 7;
    hint(5);
    hint(6);
    hint(7);
    await settle();
    expect(seqs(follower)).toEqual([1, 2, 3, 4, 5, 6, 7]);
  });

  it('does not ask for what it has', async () => {
    const { follower, server, settle, hint } = scene(2);
    follower.start();
    await settle();
    hint(2);
    await settle();
    expect(server.asked).toEqual([0]);
  });

  it('says why it has nothing, asks again, and goes on where it was', async () => {
    const { follower, server, settle, timer } = scene(4);
    follower.start();
    await settle();
    server.known = 6;
    server.fail = 1;
    await follower.pull();
    expect(follower.problem).toBe('connection lost');
    expect(timer()?.ms).toBe(500);
    timer()?.callback();
    await settle();
    expect(follower.problem).toBeNull();
    expect(seqs(follower)).toEqual([1, 2, 3, 4, 5, 6]);
  });

  it('looks again when a connection is made anew, and asks anyway since hints may be lost', async () => {
    const { follower, server, settle, hint, timer } = scene(1);
    follower.start();
    await settle();
    expect(timer()?.ms).toBe(4000);
    server.known = 2;
    hint(null);
    await settle();
    expect(seqs(follower)).toEqual([1, 2]);
  });

  it('asks no more after stop', async () => {
    const { follower, settle, timer } = scene(1);
    follower.start();
    follower.stop();
    await settle();
    expect(timer()).toBeNull();
    expect(seqs(follower)).toEqual([]);
  });
});
