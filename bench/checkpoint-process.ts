import { type ChildProcessByStdio, spawn } from 'node:child_process';
import path from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable, Writable } from 'node:stream';
import type { WorkJob, WorkResult } from './checkpoint-work.ts';

const program = path.join(import.meta.dirname, 'checkpoint-work.ts');

/** A process that is ready to work when told. */
export class CheckpointProcess {
  private constructor(
    private readonly child: ChildProcessByStdio<Writable, Readable, null>,
    private readonly lines: AsyncIterator<string>,
  ) {}

  static async start(job: WorkJob): Promise<CheckpointProcess> {
    const child = spawn(process.execPath, ['--import', 'tsx', program, JSON.stringify(job)], {
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const worker = new CheckpointProcess(child, createInterface(child.stdout)[Symbol.asyncIterator]());
    await worker.line();
    return worker;
  }

  async go(): Promise<WorkResult> {
    this.child.stdin.end('go\n');
    return JSON.parse(await this.line()) as WorkResult;
  }

  private async line(): Promise<string> {
    const { value, done } = await this.lines.next();
    if (done) throw new Error('a process of the benchmark ended before it had said how it went');
    return value;
  }
}
