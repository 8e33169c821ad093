import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { expect, it } from 'vitest';
import { HEARTBEAT_DESCRIPTOR } from './heartbeat.ts';
import { Heartbeat } from './worker-protocol.ts';

it('comes while the main thread is busy, and says what goes on', async () => {
  const program = `
    import { startHeartbeat } from ${JSON.stringify(new URL('./heartbeat.ts', import.meta.url).href)};
    startHeartbeat().set('training', 7);
    setTimeout(() => {
      console.log('busy');
      for (const until = performance.now() + 4000; performance.now() < until; );
      console.log('done');
      process.exit(0);
    }, 50);`;
  const child = spawn(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', program], {
    stdio: ['ignore', 'pipe', 'inherit', 'ignore', 'pipe'],
  });
  const said: string[] = [];
  for (const input of [child.stdout, child.stdio[HEARTBEAT_DESCRIPTOR]] as Readable[])
    createInterface({ input }).on('line', (line) => said.push(line));
  await once(child, 'close');
  const beats = said.slice(said.indexOf('busy') + 1, said.indexOf('done'));
  expect(beats.length).toBeGreaterThanOrEqual(2);
  for (const beat of beats) expect(Heartbeat.parse(JSON.parse(beat))).toEqual({ phase: 'training', step: 7 });
});

it('falls silent when the main thread has hung for too long, and comes again with it', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'heartbeat-'));
  const file = join(folder, 'beats');
  const descriptor = openSync(file, 'a');
  const state = new SharedArrayBuffer(12);
  const words = new Int32Array(state);
  words[2] = -1;
  const workerData = { state, descriptor, phases: ['starting'], beatMs: 10, stallMs: 300 };
  const thread = new Worker(new URL('./heartbeat-thread.mjs', import.meta.url), { execArgv: [], workerData });
  const bytes = () => statSync(file).size;
  const grown = async (than: number) => {
    while (bytes() <= than) await sleep(10);
  };
  try {
    await grown(0);
    expect(JSON.parse(readFileSync(file, 'utf8').split('\n')[0])).toEqual({ phase: 'starting', step: null });
    await sleep(1000);
    const silent = bytes();
    await sleep(300);
    expect(bytes()).toBe(silent);
    Atomics.add(words, 0, 1);
    await grown(silent);
  } finally {
    await thread.terminate();
    closeSync(descriptor);
    rmSync(folder, { recursive: true });
  }
});
