import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    environment: 'node',
    include: ['{engine,server,app,scripts,bench}/**/*.test.{ts,tsx}'],
    // A process for each file: a GPU that dies takes one file with it, not the run.
    pool: 'forks',
    maxWorkers: 2,
    // SwiftShader compiles a kernel of many registers in seconds, and a small machine runs two files at once.
    testTimeout: 120_000,
    hookTimeout: 120_000,
  },
});
