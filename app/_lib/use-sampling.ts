import { useEffect, useRef, useState } from 'react';
import type { SampleBody } from '../../server/contract.ts';
import { ApiError, sampleCheckpoint } from './api.ts';
import type { CheckpointRef } from './checkpoint-ref.ts';

/** How far a sampling is. */
export interface SamplingState {
  readonly going: boolean;
  readonly prompt: string;
  /** What follows the prompt. */
  readonly text: string;
  readonly tokens: number;
  readonly wanted: number;
  readonly problem: string | null;
}

/** One sampling at a time from one checkpoint; the work ends when the page is left. */
export function useSampling(checkpoint: CheckpointRef) {
  const [state, setState] = useState<SamplingState | null>(null);
  const leaving = useRef<AbortController | null>(null);
  useEffect(() => () => leaving.current?.abort(), []);

  const start = async (body: SampleBody) => {
    leaving.current?.abort();
    const mine = new AbortController();
    leaving.current = mine;
    const change = (next: (before: SamplingState) => SamplingState) => {
      if (leaving.current === mine) setState((before) => before && next(before));
    };
    setState({ going: true, prompt: '', text: '', tokens: 0, wanted: body.count, problem: null });
    try {
      await sampleCheckpoint({ checkpoint, body, signal: mine.signal }, (line) =>
        change((before) => {
          if (line.type === 'prompt') return { ...before, prompt: line.text };
          const text = before.text + line.text;
          if (line.type === 'token') return { ...before, text, tokens: before.tokens + 1 };
          return { ...before, text, problem: line.error?.message ?? null };
        }),
      );
    } catch (error) {
      if (!mine.signal.aborted)
        change((before) => ({ ...before, problem: error instanceof ApiError ? error.message : String(error) }));
    } finally {
      change((before) => ({ ...before, going: false }));
    }
  };
  return { state, start, cancel: () => leaving.current?.abort() };
}
