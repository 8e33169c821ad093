import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { defineConfig } from '@playwright/test';
import { unpackBrowser } from './engine/node/vulkan-files.ts';

// This file is read again in each worker process, which inherits the environment: the first reader decides.
if (!process.env.STUDIO_E2E_PORT) {
  process.env.STUDIO_E2E_PORT = String(await freePort());
  const data = mkdtempSync(path.join(tmpdir(), 'shard-studio-e2e-'));
  process.env.STUDIO_E2E_DATA = data;
  process.on('exit', () => rmSync(data, { recursive: true, force: true, maxRetries: 5 }));
}
const baseURL = `http://127.0.0.1:${process.env.STUDIO_E2E_PORT}`;
const browser = await unpackBrowser();
const quiet = ['--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update'];

export default defineConfig({
  testDir: 'e2e',
  testMatch: '**/*.spec.ts',
  // Writes into docs/images/; the spec says how.
  testIgnore: process.env.STUDIO_PICTURES ? [] : ['**/pictures.spec.ts'],
  // One studio, one queue, two cores: the tests take turns.
  workers: 1,
  fullyParallel: false,
  timeout: 120_000,
  expect: { timeout: 15_000 },
  forbidOnly: Boolean(process.env.CI),
  reporter: [['list']],
  use: {
    baseURL,
    launchOptions: {
      executablePath: browser.executablePath,
      env: { ...process.env, ...browser.env },
      args: ['--no-sandbox', '--disable-gpu', '--disable-sync', ...quiet],
    },
    trace: 'retain-on-failure',
    screenshot: 'only-on-failure',
  },
  webServer: {
    command: `node --import tsx server/cli.ts serve --port ${process.env.STUDIO_E2E_PORT} --data "${process.env.STUDIO_E2E_DATA}"`,
    url: baseURL,
    env: { NODE_ENV: 'production', NEXT_TELEMETRY_DISABLED: '1' },
    reuseExistingServer: false,
    timeout: 60_000,
    gracefulShutdown: { signal: 'SIGTERM', timeout: 15_000 },
    stdout: 'ignore',
    stderr: 'pipe',
  },
});

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer();
    probe.once('error', reject);
    probe.listen(0, '127.0.0.1', () => {
      const address = probe.address();
      probe.close(() =>
        typeof address === 'object' && address ? resolve(address.port) : reject(new Error('no port')),
      );
    });
  });
}
