'use client';

import { useEffect, useRef, useState } from 'react';
import type { PlanAnswer, PlanJob, PlanOutcome, PlanRequest } from './prediction-protocol.ts';

/** A plan that takes longer than this is given up for a newer one. */
const OVERTAKE_MS = 1500;
/** Typing settles for this long before anything is planned. */
const SETTLE_MS = 90;

export interface Predictions {
  /** By the job's key; the outcome before stays until the new one is there. */
  readonly outcomes: ReadonlyMap<string, PlanOutcome>;
  readonly pending: boolean;
}

interface Answered {
  readonly outcomes: ReadonlyMap<string, PlanOutcome>;
  /** The request whose last answer is here. */
  readonly key: string | null;
}

const NOTHING: Answered = { outcomes: new Map(), key: null };

/**
 * Plans configs in a worker, the newest request only: while one is being planned, of all that follow only the last is kept.
 * `jobs` null: nothing to plan; what was predicted stays and is not current.
 */
export function usePredictions(jobs: readonly PlanJob[] | null): Predictions {
  const [answered, setAnswered] = useState(NOTHING);
  const planner = useRef<Planner | null>(null);
  const key = jobs && JSON.stringify(jobs);

  useEffect(() => {
    const made = new Planner((answer, requestKey) => {
      setAnswered((before) => ({
        outcomes: new Map(before.outcomes).set(answer.key, answer.outcome),
        key: answer.last ? requestKey : before.key,
      }));
    });
    planner.current = made;
    return () => made.stop();
  }, []);

  useEffect(() => {
    if (key === null) return;
    const timer = setTimeout(() => planner.current?.plan(key), SETTLE_MS);
    return () => clearTimeout(timer);
  }, [key]);

  return { outcomes: answered.outcomes, pending: key !== null && key !== answered.key };
}

class Planner {
  private worker: Worker;
  private readonly onAnswer: (answer: PlanAnswer, requestKey: string) => void;
  private id = 0;
  /** The jobs being planned and those that wait, each as JSON: what tells requests apart. */
  private planning: string | null = null;
  private waiting: string | null = null;
  private startedMs = 0;

  constructor(onAnswer: (answer: PlanAnswer, requestKey: string) => void) {
    this.onAnswer = onAnswer;
    this.worker = this.open();
  }

  private open(): Worker {
    const worker = new Worker(new URL('./prediction.worker.ts', import.meta.url), { type: 'module' });
    worker.onmessage = ({ data }: MessageEvent<PlanAnswer>) => {
      const overtaken = this.waiting !== null;
      if (!overtaken && this.planning !== null) this.onAnswer(data, this.planning);
      if (!data.last) return;
      this.planning = null;
      this.next();
    };
    worker.onerror = ({ message }) => {
      const problem = `The planner could not be started in this browser${message ? `: ${message}` : ''}.`;
      const requestKey = this.planning ?? '';
      this.planning = null;
      this.onAnswer({ id: this.id, key: 'current', outcome: { plan: null, problem }, last: true }, requestKey);
    };
    return worker;
  }

  plan(requestKey: string): void {
    this.waiting = requestKey;
    if (this.planning !== null && performance.now() - this.startedMs > OVERTAKE_MS) {
      this.worker.terminate();
      this.worker = this.open();
      this.planning = null;
    }
    if (this.planning === null) this.next();
  }

  stop(): void {
    this.worker.terminate();
  }

  private next(): void {
    if (this.waiting === null) return;
    this.planning = this.waiting;
    this.waiting = null;
    this.startedMs = performance.now();
    const request: PlanRequest = { id: ++this.id, jobs: JSON.parse(this.planning) as PlanJob[] };
    this.worker.postMessage(request);
  }
}
