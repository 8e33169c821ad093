import { StudioError } from '../errors.ts';
import type { RunError } from '../trainer/events.ts';
import { startHeartbeat } from './heartbeat.ts';
import { runWorkerRanks } from './run-rank.ts';
import { type FromWorker, ToWorker, type WorkerStart } from './worker-protocol.ts';

/** The program of a worker process: runs its ranks once, for the parent at the other end of the IPC channel. */

const heartbeat = startHeartbeat();
let stopping = false;
let savesRequested = 0;
let tracesRequested = 0;
let step: number | null = null;

process.on('message', (raw) => {
  const message = ToWorker.parse(raw);
  if (message.type === 'stop') stopping = true;
  else if (message.type === 'save') savesRequested++;
  else if (message.type === 'trace') tracesRequested++;
  else void work(message);
});
// The parent has gone: nobody hears this run any more.
process.on('disconnect', () => process.exit(3));
// Whoever ends a rank from outside gets what it has.
process.on('SIGTERM', () => {
  savesRequested++;
  stopping = true;
});
// A Ctrl-C of the terminal reaches the whole group; the parent decides.
process.on('SIGINT', () => undefined);
process.on('uncaughtException', (error) => void end({ type: 'failed', error: runError(error, null) }, 1));
process.on('unhandledRejection', (error) => void end({ type: 'failed', error: runError(error, null) }, 1));

async function work(start: WorkerStart): Promise<void> {
  const onlyRank = start.ranks.length === 1 ? start.ranks[0] : null;
  try {
    const { ranks } = await runWorkerRanks(start, {
      emit: (event) => void say({ type: 'event', event }),
      stopRequested: () => stopping,
      savesRequested: () => savesRequested,
      tracesRequested: () => tracesRequested,
      onPhase: (phase, at) => {
        step = at;
        heartbeat.set(phase, at);
      },
    });
    await end(
      {
        type: 'done',
        status: ranks[0].result.status,
        checkpoints: ranks.flatMap(({ result }) => result.checkpoints),
        ranks: ranks.map(({ rank, engine }) => {
          const { peakBytes, byCategory } = engine.memory();
          return { rank, peakBytes, byCategory };
        }),
      },
      0,
    );
  } catch (error) {
    console.error(error);
    await end({ type: 'failed', error: runError(error, onlyRank) }, 1);
  }
}

function say(message: FromWorker): Promise<void> {
  return new Promise((resolve) => {
    if (process.connected) process.send?.(message, () => resolve());
    else resolve();
  });
}

async function end(message: FromWorker, code: number): Promise<void> {
  await say(message);
  process.exit(code);
}

function runError(error: unknown, rank: number | null): RunError {
  const code = error instanceof StudioError ? error.code : 'internal';
  const details = error instanceof StudioError ? error.details : {};
  return {
    code,
    message: error instanceof Error ? error.message : String(error),
    rank: typeof details.rank === 'number' ? details.rank : rank,
    step: typeof details.step === 'number' ? details.step : step,
  };
}
