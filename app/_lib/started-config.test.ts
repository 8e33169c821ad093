import { expect, it } from 'vitest';
import { broughtAt, checkpointDataPath, checkpointPageUrl, startUrl } from './checkpoint-ref.ts';
import { toDraft, valueAt } from './config-draft.ts';
import { nextName, startingFrom } from './started-config.ts';

it('a run that goes on has steps left, and what it started from before counts no more', () => {
  const before = { trainer: { steps: 10 }, init: { from: 'uploads/old.ckpt' } };
  const start = { use: 'resume', path: 'uploads/new', step: 4 } as const;
  const within = toDraft(startingFrom(before, start));
  expect(['trainer.steps', 'init.from', 'checkpoint.resume'].map((at) => valueAt(within, at))).toEqual([
    10,
    null,
    'uploads/new',
  ]);
  expect(valueAt(startingFrom(before, { ...start, step: 10 }), 'trainer.steps')).toBe(20);
  const init = toDraft(startingFrom({ checkpoint: { resume: 'latest' } }, { ...start, use: 'init' }));
  expect(['init.from', 'checkpoint.resume'].map((at) => valueAt(init, at))).toEqual(['uploads/new', null]);
  expect(['demo', 'demo-2', 'a-b-9'].map(nextName)).toEqual(['demo-2', 'demo-3', 'a-b-10']);
});

it('addresses say whose checkpoint it is', () => {
  const saved = { runId: 'r 1', name: 'step-000004' };
  const brought = { runId: null, name: 'Wal (1).ckpt' };
  expect([saved, brought].map(checkpointPageUrl)).toEqual([
    '/runs/r%201/checkpoints/step-000004',
    '/checkpoints/Wal%20(1).ckpt',
  ]);
  expect([saved, brought].map((one) => startUrl(one, 'init'))).toEqual([
    '/runs/new?from=r+1&init=runs%2Fr+1%2Fcheckpoints%2Fstep-000004',
    '/runs/new?init=uploads%2FWal+%281%29.ckpt',
  ]);
  expect([broughtAt(checkpointDataPath(brought)), broughtAt(checkpointDataPath(saved))]).toEqual([brought, null]);
});
