import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    environment: 'node',
    include: ['{engine,server,app,scripts,bench}/**/*.test.{ts,tsx}'],
    // A process for each file: a GPU that dies takes one file with it, not the run.
    pool: 'forks',
    maxWorkers: 2,
    // SwiftShader compiles a kernel in up to 200 ms, and a small machine runs two files at once.
    testTimeout: 30_000,
    hookTimeout: 60_000,
  },
});
