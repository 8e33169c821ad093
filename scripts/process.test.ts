import { existsSync } from 'node:fs';
import { expect, test } from 'vitest';
import { duration, runProgram, SetupError } from './process.mjs';

const node = (script: string, timeoutMs = 20_000) =>
  runProgram(process.execPath, ['-e', script], { timeoutMs, quiet: true });

test('the exit code and the last lines come back', async () => {
  const { code, tail } = await node("for (let i = 0; i < 1000; i++) console.log('line', i); process.exitCode = 7;");
  expect(code).toBe(7);
  expect(tail.split('\n').at(-1)).toBe('line 999');
  expect(tail.split('\n').length).toBeLessThan(30);
});

test('a program that a signal ended has the code that a shell would give', async () => {
  expect((await node("process.kill(process.pid, 'SIGTERM'); setInterval(() => {}, 1000);")).code).toBe(143);
});

test('what a program left running ends with it', async () => {
  const { tail } = await node(
    "console.log(require('child_process').spawn('sleep', ['60'], { stdio: 'inherit' }).pid); process.exit();",
  );
  await expect.poll(() => isRunning(Number(tail))).toBe(false);
});

test('a program that does not end is stopped, with its last words', async () => {
  const endless = node("console.log('last words'); setInterval(() => {}, 1000);", 500);
  await expect(endless).rejects.toThrow(/stopped after 0.5 s.*last words/s);
});

test('a program that is not there is an error for a person', async () => {
  const absent = runProgram('no-such-program', [], { timeoutMs: 1000 });
  await expect(absent).rejects.toThrow(new SetupError('cannot run no-such-program: it is not on the PATH'));
});

test('durations as a person says them', () => {
  expect([812, 9_949, 9_950, 119_400, 200_000].map(duration)).toEqual([
    '0.8 s',
    '9.9 s',
    '10 s',
    '119 s',
    '3 min 20 s',
  ]);
});

/** A zombie has ended too: only its parent has not looked yet. */
function isRunning(pid: number): boolean {
  expect(pid).toBeGreaterThan(1);
  try {
    process.kill(pid, 0);
  } catch {
    return false;
  }
  return existsSync(`/proc/${pid}/exe`);
}
