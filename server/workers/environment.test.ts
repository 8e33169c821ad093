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
  expect(runEnvironment(workers, false, cores).UV_THREADPOOL_SIZE).toBe(threads);
});

test('only on a GPU are large copies stored past the caches', () => {
  expect(runEnvironment(1, true).GLIBC_TUNABLES).toContain('non_temporal');
  expect(runEnvironment(1, false).GLIBC_TUNABLES).toBeUndefined();
});
