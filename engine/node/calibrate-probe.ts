/** A process in which an adapter is measured: `calibrate-probe.ts TASK`, started by calibrate.ts over IPC. */
import { type CalibrationReport, type CalibrationTask, measureAdapter } from './calibrate.ts';

const task = JSON.parse(process.argv[2]) as CalibrationTask;

/** Says that this process is ready, and hears when all of them begin. */
function begin(): Promise<number> {
  return new Promise((resolve) => {
    process.once('message', (message) => resolve((message as { beginMs: number }).beginMs));
    process.send?.({ ready: true } satisfies CalibrationReport);
  });
}

async function report(): Promise<CalibrationReport> {
  try {
    return await measureAdapter(task, begin);
  } catch (error) {
    return { problem: (error as Error).message };
  }
}

// Drivers may hang or crash while they unload, so nothing waits for that.
process.send?.(await report(), () => process.exit(0));
