import { defineConfig } from 'vitest/config';

/** npm run test:grid: the whole grid on a GPU. A software GPU takes minutes. */
export default defineConfig({
  test: { environment: 'node', include: ['engine/node/grid-on-gpu.ts'], pool: 'forks', testTimeout: 600_000 },
});
