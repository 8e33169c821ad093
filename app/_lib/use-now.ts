'use client';

import { useSyncExternalStore } from 'react';

const TICK_MS = 15_000;

function subscribe(callback: () => void): () => void {
  const timer = setInterval(callback, TICK_MS);
  return () => clearInterval(timer);
}

const now = () => Math.floor(Date.now() / TICK_MS) * TICK_MS;

/** The time, a few times a minute; null while a page is drawn on the server, whose zone and clock are not the viewer's. */
export function useNow(): number | null {
  return useSyncExternalStore<number | null>(subscribe, now, () => null);
}
