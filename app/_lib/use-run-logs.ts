'use client';

import { useEffect, useMemo, useState, useSyncExternalStore } from 'react';
import { getEvents } from './api.ts';
import { followHints } from './live-hints.ts';
import { RunFollower } from './run-follower.ts';

/** A run's follower with the version it had when the page was drawn: log is mutable, version is what changes. */
export interface FollowedRun {
  readonly id: string;
  readonly follower: RunFollower;
  readonly version: number;
}

function follow(id: string): RunFollower {
  return new RunFollower({
    fetchPage: (afterSeq, signal) => getEvents(id, afterSeq, signal),
    onHint: (callback) => followHints(id, callback),
    setTimer(callback, ms) {
      const timer = setTimeout(callback, ms);
      return () => clearTimeout(timer);
    },
  });
}

/** Follows runs live for as long as the page shows them, and draws again at most once a frame. */
export function useRunLogs(ids: readonly string[]): FollowedRun[] {
  const key = ids.join(',');
  const [store] = useState(() => new FollowerStore());
  useEffect(() => {
    store.show(key ? key.split(',') : []);
    return () => store.show([]);
  }, [key, store]);
  const version = useSyncExternalStore(store.subscribe, store.getVersion, () => 0);
  return useMemo(() => {
    void version;
    return store.followed();
  }, [store, version]);
}

class FollowerStore {
  private followers = new Map<string, { follower: RunFollower; unsubscribe: () => void }>();
  private readonly listeners = new Set<() => void>();
  private version = 0;
  private frame = 0;

  show(ids: readonly string[]): void {
    for (const [id, { follower, unsubscribe }] of this.followers) {
      if (ids.includes(id)) continue;
      unsubscribe();
      follower.stop();
      this.followers.delete(id);
    }
    for (const id of ids) {
      if (this.followers.has(id)) continue;
      const follower = follow(id);
      this.followers.set(id, { follower, unsubscribe: follower.subscribe(this.changed) });
      follower.start();
    }
    this.changed();
  }

  followed(): FollowedRun[] {
    return [...this.followers].map(([id, { follower }]) => ({ id, follower, version: follower.version }));
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly getVersion = (): number => this.version;

  private readonly changed = (): void => {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.version++;
      for (const listener of this.listeners) listener();
    });
  };
}
