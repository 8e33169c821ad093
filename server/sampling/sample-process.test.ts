import { execFileSync } from 'node:child_process';
import { tmpdir } from 'node:os';
import { expect, it } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import type { SampleLine } from '../contract.ts';
import { SAMPLING_PATIENCE, sampleInProcess } from './sample-process.ts';

/** No checkpoint is needed for what goes wrong before it is read. */
const request = {
  path: '/no/such/checkpoint',
  prompt: [1],
  settings: { count: 1 },
  config: parseConfig({ model: { kind: 'gpt2', vocabSize: 10 } }),
  corpusFolder: tmpdir(),
};
const staying = new AbortController().signal;

/** Processes that this one started. */
const children = (): number[] =>
  execFileSync('ps', ['--ppid', String(process.pid), '-o', 'pid=,args='], { encoding: 'utf8' })
    .split('\n')
    .filter((line) => line.includes('sample-worker'))
    .map((line) => Number(line.trim().split(' ')[0]));

async function all(lines: AsyncIterable<SampleLine>): Promise<SampleLine[]> {
  const said: SampleLine[] = [];
  for await (const line of lines) said.push(line);
  expect(children()).toEqual([]);
  return said;
}

it('says what the process says', async () => {
  expect(await all(sampleInProcess(request, staying))).toEqual([
    { type: 'end', text: '', error: { code: 'not-found', message: '/no/such/checkpoint is not there.' } },
  ]);
});

it('ends it when a token takes too long, and when all of it does', async () => {
  const end = (message: RegExp) => [
    { type: 'end', text: '', error: { code: 'timeout', message: expect.stringMatching(message) } },
  ];
  const slow = { ...SAMPLING_PATIENCE, tokenMs: 1 };
  expect(await all(sampleInProcess(request, staying, slow))).toEqual(end(/After 0 tokens the next one took more than/));
  const long = { ...SAMPLING_PATIENCE, allMs: 1 };
  expect(await all(sampleInProcess({ ...request, adapter: 'auto' }, staying, long))).toEqual(
    end(/0.001 s were not enough.*ask for fewer tokens/),
  );
});

it('says when it died', async () => {
  const lines = sampleInProcess(request, staying);
  const first = lines.next();
  for (const pid of children()) process.kill(pid, 'SIGKILL');
  expect((await first).value).toMatchObject({
    error: { code: 'worker-died', message: expect.stringContaining('ran out of memory') },
  });
  expect(await all(lines)).toEqual([]);
});

it('ends when nobody listens any more', async () => {
  const leaving = new AbortController();
  const lines = sampleInProcess(request, leaving.signal);
  const first = lines.next();
  leaving.abort();
  expect(await first).toEqual({ done: true, value: undefined });
  expect(children()).toEqual([]);
});
