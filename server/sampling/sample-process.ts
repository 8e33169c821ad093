import { fileURLToPath } from 'node:url';
import { counted } from '../../engine/counted.ts';
import type { SampleRequest } from '../../engine/node/sample-checkpoint.ts';
import { childLines } from '../children/child-lines.ts';
import { SampleLine } from '../contract.ts';

/** The time that a sampling may take: from one token to the next, the first with reading the checkpoint, and in all. */
export interface SamplingPatience {
  readonly tokenMs: number;
  readonly allMs: number;
}
export const SAMPLING_PATIENCE: SamplingPatience = { tokenMs: 120_000, allMs: 600_000 };

const WORKER = fileURLToPath(new URL('./sample-worker.ts', import.meta.url));

/**
 * Samples in a process of its own and gives its lines; the last one is always an end, `timeout` and `worker-died` among its
 * errors. The process is gone when this returns, also where `signal` or whoever reads stops it.
 */
export async function* sampleInProcess(
  request: SampleRequest,
  signal: AbortSignal,
  patience: SamplingPatience = SAMPLING_PATIENCE,
): AsyncGenerator<SampleLine, void, void> {
  const until = performance.now() + patience.allMs;
  let tokens = 0;
  const child = {
    entry: WORKER,
    line: SampleLine,
    isLast(line: SampleLine) {
      if (line.type === 'token') tokens++;
      return line.type === 'end';
    },
    waitMs: () => Math.min(patience.tokenMs, until - performance.now()),
  };
  const end = yield* childLines(child, request, signal);
  if (end.how === 'late') yield failure('timeout', late(tokens, request.adapter, patience, performance.now() >= until));
  if (end.how === 'died') yield failure('worker-died', `The process that samples ${end.said}`);
}

function failure(code: string, message: string): SampleLine {
  return { type: 'end', text: '', error: { code, message } };
}

function late(
  tokens: number,
  adapter: string | undefined,
  { tokenMs, allMs }: SamplingPatience,
  inAll: boolean,
): string {
  const way =
    adapter === 'interpreter' || adapter === undefined ? 'choose a GPU as the adapter' : 'ask for fewer tokens';
  const took = inAll ? `${allMs / 1000} s were not enough` : `the next one took more than ${tokenMs / 1000} s`;
  return `After ${counted(tokens, 'token')} ${took}, so it was ended: ${way}, or shorten the prompt.`;
}
