import { parseArgs } from 'node:util';
import { discoverAdapters } from '../../engine/node/adapters.ts';
import { deviceJson, deviceTable } from '../../engine/node/device-list.ts';

/** `devices [--json]`. Returns the exit code. */
export async function devices(args: string[]): Promise<number> {
  const { values } = parseArgs({ args, options: { json: { type: 'boolean', default: false } } });
  const entries = await discoverAdapters(({ icdPath, problem }) => {
    process.stderr.write(`${icdPath}: ${problem}\n`);
  });
  process.stdout.write(`${values.json ? deviceJson(entries) : deviceTable(entries)}\n`);
  return 0;
}
