import { expect, test } from 'vitest';
import { runEnvironment, workerEnvironment } from './environment.ts';

test('a worker gets nothing that it does not need', () => {
  const from = { ...process.env, PATH: '/bin', STUDIO_TOKEN: 'x', NODE_OPTIONS: '--inspect' };
  const given = workerEnvironment(from);
  expect(given).toMatchObject({ PATH: '/bin' });
  expect(given.STUDIO_TOKEN).toBeUndefined();
  expect(given.NODE_OPTIONS).toBeUndefined();
});

test.each([
  [2, 2, '4'],
  [1, 32, '16'],
  [2, 16, '8'],
  [8, 128, '16'],
])('%i workers on %i cores have %s threads each', (workers, cores, threads) => {
  expect(runEnvironment(workers, cores).UV_THREADPOOL_SIZE).toBe(threads);
});
