import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFile, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { isSameProcess, processStartTime } from './liveness.ts';

describe('a process', () => {
  test('is itself while it runs, and not after', async () => {
    const child = spawn('sleep', ['60']);
    await once(child, 'spawn');
    const startTime = processStartTime(child.pid!)!;
    expect(startTime).toBeGreaterThan(0);
    expect(isSameProcess(child.pid!, startTime)).toBe(true);
    expect(isSameProcess(child.pid!, startTime - 1)).toBe(false);
    child.kill('SIGKILL');
    await once(child, 'exit');
    expect(isSameProcess(child.pid!, startTime)).toBe(false);
  });

  test('is found whatever its program is called', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'name-'));
    const program = join(folder, 'a) R 1 (b');
    await copyFile('/bin/sleep', program);
    const child = spawn(program, ['60']);
    await once(child, 'spawn');
    const named = processStartTime(child.pid!)!;
    child.kill('SIGKILL');
    await once(child, 'exit');
    await rm(folder, { recursive: true });
    expect(Math.abs(named - processStartTime(process.pid)!)).toBeLessThan(100 * 600);
  });

  test('is gone as a zombie', async () => {
    // The shell's child ends while the program that replaced the shell never waits for it.
    const parent = spawn('sh', ['-c', 'sleep 0.05 & echo $!; exec sleep 60']);
    const [line] = await once(parent.stdout!, 'data');
    const pid = Number(String(line));
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(processStartTime(pid)).toBeNull();
    parent.kill('SIGKILL');
  });
});
