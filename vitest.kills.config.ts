import { defineConfig } from 'vitest/config';

/** npm run test:kills: 50 kills of a rank, of all ranks and of the server, each told with its moment. A few minutes. */
export default defineConfig({
  test: {
    environment: 'node',
    include: ['server/workers/kills.test.ts'],
    pool: 'forks',
    env: { KILLS: '50' },
    hookTimeout: 120_000,
  },
});
