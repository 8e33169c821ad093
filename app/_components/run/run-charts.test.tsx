import { createElement } from 'react';
import { renderToStaticMarkup } from 'react-dom/server';
import { describe, expect, it } from 'vitest';
import type { StepEvent } from '../../../engine/trainer/events.ts';
import { appendEvents, emptyRunLog, type SequencedEvent } from '../../_lib/run-log.ts';
import { ChartNote } from '../charts/chart-note.tsx';
import { IterationChart, LossChart } from './run-charts.tsx';

const step = (seq: number, number: number): SequencedEvent => ({
  seq,
  event: 'step',
  rank: 0,
  step: number,
  loss: 4 - number / 8,
  lossMean: 4 - number / 8,
  gradNorm: 1,
  iterationMs: 10,
  tokens: 35,
  memory: {
    currentBytes: 70,
    peakBytes: 80,
    liveBytes: 28,
    byCategory: { parameters: 1, gathered: 2, gradients: 3, optimizer: 4, activations: 5, workspace: 6, staging: 7 },
    hostBytes: 9,
    allocRetries: 0,
    ooms: 0,
  } satisfies StepEvent['memory'],
});

function logOf(events: readonly SequencedEvent[]) {
  const log = emptyRunLog();
  expect(appendEvents(log, events)).toBe(events.length);
  return log;
}

const lossChart = (events: readonly SequencedEvent[]) =>
  renderToStaticMarkup(createElement(LossChart, { log: logOf(events), version: 1, ranks: [0], empty: 'nothing yet' }));

describe('the loss of a run', () => {
  const steps = [step(1, 0), step(2, 1), step(3, 2)];

  it('is drawn with that of the held-out part beside it, where there is one', () => {
    const validated: SequencedEvent[] = [...steps, { seq: 4, event: 'validation', step: 2, loss: 3.375 }];
    const html = lossChart(validated);
    expect(html).toContain('rank 0');
    expect(html).toMatch(/validation.*3\.375/s);
    expect(lossChart(steps)).not.toContain('validation');
  });
});

describe('a chart of a run over a simulated link', () => {
  it('says so beside its title', () => {
    const chart = createElement(IterationChart, {
      log: logOf([step(1, 0)]),
      version: 1,
      ranks: [0],
      empty: '',
      predictedMs: 7,
    });
    const noted = createElement(ChartNote, { value: 'simulated link, 5 GB/s' }, chart);
    expect(renderToStaticMarkup(noted)).toMatch(/Iteration time.*simulated link, 5 GB\/s/s);
    expect(renderToStaticMarkup(chart)).not.toContain('simulated');
    expect(renderToStaticMarkup(chart)).toContain('predicted 7.00 ms');
  });
});
