'use client';

import { useQuery, useQueryClient } from '@tanstack/react-query';
import { useEffect } from 'react';
import { isActive } from '../_components/runs/state-chip.tsx';
import { ApiError, getRun, listRuns } from './api.ts';
import { followHints } from './live-hints.ts';

/** Hints may be lost, and a queue moves without events. */
const ACTIVE_MS = 2000;
const IDLE_MS = 15_000;
/** Hints may come ten times a second; a list need not. */
const COALESCE_MS = 400;

function useHinted(topic: string, queryKey: readonly unknown[]): void {
  const client = useQueryClient();
  const key = JSON.stringify(queryKey);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | null = null;
    const stop = followHints(topic, () => {
      timer ??= setTimeout(() => {
        timer = null;
        void client.invalidateQueries({ queryKey: JSON.parse(key) as unknown[] });
      }, COALESCE_MS);
    });
    return () => {
      stop();
      if (timer) clearTimeout(timer);
    };
  }, [client, topic, key]);
}

/** The list of runs, newest first, kept up to date. */
export function useRuns() {
  useHinted('runs', ['runs']);
  return useQuery({
    queryKey: ['runs'],
    queryFn: ({ signal }) => listRuns(signal),
    refetchInterval: ({ state }) => (state.data?.runs.some((run) => isActive(run.state)) ? ACTIVE_MS : IDLE_MS),
  });
}

/** One run, kept up to date while it goes on. */
export function useRun(id: string) {
  useHinted(id, ['run', id]);
  return useQuery({
    queryKey: ['run', id],
    queryFn: ({ signal }) => getRun(id, signal),
    refetchInterval: ({ state }) => {
      if (state.error instanceof ApiError && state.error.status === 404) return false;
      return !state.data || isActive(state.data.state) ? ACTIVE_MS : false;
    },
  });
}
