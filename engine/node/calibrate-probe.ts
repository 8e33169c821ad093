/** The process in which one adapter is calibrated: `calibrate-probe.ts ID`, started by calibrateInChild over IPC. */
import { calibrateAdapter } from './calibrate.ts';

const [id] = process.argv.slice(2);

async function report(): Promise<object> {
  try {
    return { rates: await calibrateAdapter(id) };
  } catch (error) {
    return { problem: (error as Error).message };
  }
}

// Drivers may hang or crash while they unload, so nothing waits for that.
process.send?.(await report(), () => process.exit(0));
