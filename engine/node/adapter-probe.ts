/** The process in which one driver is listed: `adapter-probe.ts MANIFEST`, started by discoverAdapters over IPC. */
import { type DriverReport, listDriver } from './adapters.ts';

const [icdPath] = process.argv.slice(2);

async function report(): Promise<DriverReport> {
  try {
    return { icdPath, adapters: await listDriver(icdPath), problem: null };
  } catch (error) {
    return { icdPath, adapters: [], problem: (error as Error).message };
  }
}

// Drivers may hang or crash while they unload, so nothing waits for that.
process.send?.(await report(), () => process.exit(0));
