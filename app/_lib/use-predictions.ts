'use client';

import { useEffect, useRef, useState } from 'react';
import type { PlanAnswer, PlanJob, PlanOutcome, PlanRequest } from './prediction-protocol.ts';

/** Typing settles for this long before anything is planned. */
const SETTLE_MS = 90;

export interface Predictions {
  /** By the job's key; the outcome before stays until the new one is there. */
  readonly outcomes: ReadonlyMap<string, PlanOutcome>;
  readonly pending: boolean;
}

const NOTHING: Predictions = { outcomes: new Map(), pending: false };

/**
 * Plans configs in a worker, the newest request only: while one is being planned, of all that follow only the last is kept.
 * `jobs` null: nothing to plan; what was predicted stays and is not current.
 */
export function usePredictions(jobs: readonly PlanJob[] | null): Predictions {
  const [predictions, setPredictions] = useState(NOTHING);
  const planner = useRef<Planner | null>(null);
  const key = jobs && JSON.stringify(jobs);

  useEffect(() => {
    const made = new Planner((answer) => {
      setPredictions(({ outcomes }) => ({
        outcomes: new Map(outcomes).set(answer.key, answer.outcome),
        pending: !answer.last,
      }));
    });
    planner.current = made;
    return () => made.stop();
  }, []);

  useEffect(() => {
    if (key === null) return;
    setPredictions(({ outcomes }) => ({ outcomes, pending: true }));
    const timer = setTimeout(() => planner.current?.plan(JSON.parse(key) as PlanJob[]), SETTLE_MS);
    return () => clearTimeout(timer);
  }, [key]);

  return predictions;
}

class Planner {
  private readonly worker = new Worker(new URL('./prediction.worker.ts', import.meta.url), { type: 'module' });
  private readonly onAnswer: (answer: PlanAnswer) => void;
  private id = 0;
  private busy = false;
  private waiting: readonly PlanJob[] | null = null;

  constructor(onAnswer: (answer: PlanAnswer) => void) {
    this.onAnswer = onAnswer;
    this.worker.onmessage = ({ data }: MessageEvent<PlanAnswer>) => {
      if (data.last) this.busy = false;
      const overtaken = this.waiting !== null;
      if (!overtaken) this.onAnswer(data);
      if (data.last) this.next();
    };
    this.worker.onerror = ({ message }) => {
      const problem = `The planner could not be started in this browser${message ? `: ${message}` : ''}.`;
      this.onAnswer({ id: this.id, key: 'current', outcome: { plan: null, problem }, last: true });
    };
  }

  plan(jobs: readonly PlanJob[]): void {
    this.waiting = jobs;
    if (!this.busy) this.next();
  }

  stop(): void {
    this.worker.terminate();
  }

  private next(): void {
    if (!this.waiting) return;
    const request: PlanRequest = { id: ++this.id, jobs: this.waiting };
    this.waiting = null;
    this.busy = true;
    this.worker.postMessage(request);
  }
}
