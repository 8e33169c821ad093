import { resolve } from 'node:path';
import { type AdapterEntry, discoverAdapters } from '../../engine/node/adapters.ts';
import { calibrate, placesFrom } from '../../engine/node/calibrate.ts';
import { writeCalibration } from '../../engine/node/calibration-store.ts';
import { deviceJson, deviceTable } from '../../engine/node/device-list.ts';
import { tuneAdapter } from '../../engine/node/tune-adapter.ts';
import { writeVariants } from '../../engine/node/variant-store.ts';
import { variantClass } from '../../engine/ops/kernel.ts';
import { QUIET_SHARE, readCoreTicks, shareOfOthers } from '../scheduler/machine-load.ts';
import { readArguments } from './arguments.ts';
import { checkDataFolder } from './writable-folder.ts';

/** `devices [--json] [--calibrate] [--tune]`. Returns the exit code. */
export async function devices(args: string[]): Promise<number> {
  const { values } = readArguments({
    args,
    options: {
      json: { type: 'boolean', default: false },
      calibrate: { type: 'boolean', default: false },
      tune: { type: 'boolean', default: false },
    },
  });
  const entries = await discoverAdapters(({ icdPath, problem }) => {
    process.stderr.write(`${icdPath}: ${problem}\n`);
  });
  if (values.tune || values.calibrate) await checkDataFolder(resolve(process.env.STUDIO_DATA || 'data'));
  // First what is chosen, so that the rates are those of what runs.
  if (values.tune) await tune(entries);
  if (values.calibrate) await measureRates(entries);
  process.stdout.write(`${values.json ? deviceJson(entries) : deviceTable(entries)}\n`);
  return 0;
}

/** Measures the kernel variants of each real GPU and keeps the fastest, which the runs on it take from then on. */
async function tune(entries: readonly AdapterEntry[]): Promise<void> {
  const dataFolder = resolve(process.env.STUDIO_DATA || 'data');
  for (const entry of entries.filter(({ software }) => !software)) {
    const variants = await tuneAdapter(entry.id, ({ kernel, params }, variant, seconds) => {
      process.stderr.write(`${variantClass(kernel, params)}: ${variant} ${micro(seconds)} µs\n`);
    });
    writeVariants(dataFolder, entry, variants);
    const chosen = Object.entries(variants).map(([shape, variant]) => `${shape}: ${variant}`);
    process.stderr.write(`${entry.name}: ${chosen.join('; ') || 'the defaults are the fastest'}\n`);
  }
}

/** Measures each adapter's rates, one after the other, and keeps them in the data folder, where `plan` and the studio look. */
async function measureRates(entries: readonly AdapterEntry[]): Promise<void> {
  const dataFolder = resolve(process.env.STUDIO_DATA || 'data');
  for (const entry of entries) {
    const before = readCoreTicks();
    const rates = await calibrate(placesFrom(entry, entries));
    const share = shareOfOthers(before, readCoreTicks());
    if (share > QUIET_SHARE)
      process.stderr.write(
        `${entry.name}: other work took ${Math.round(share * 100)} % of this machine's cores meanwhile, so these are the rates of a ` +
          'busy machine; measure again when it is quiet\n',
      );
    await writeCalibration(dataFolder, entry, rates);
    const { kernels, dispatchSeconds, submitSeconds, copies } = rates;
    process.stderr.write(
      `${entry.name}: ${giga(kernels.matmul.flopsPerSecond)} GFLOP/s, with halves ` +
        `${giga(kernels.matmulHalf.flopsPerSecond)}, memory ${giga(kernels.elements.bytesPerSecond)} GB/s, ` +
        `${micro(dispatchSeconds)} µs a dispatch and ${micro(submitSeconds)} a submit\n`,
    );
    for (const { processes, ...each } of copies)
      process.stderr.write(
        `  ${processes} at once: uploads ${giga(each.uploadBytesPerSecond)} GB/s, downloads ` +
          `${giga(each.downloadBytesPerSecond)} GB/s and out of their buffer ${giga(each.hostCopyBytesPerSecond)} GB/s, ` +
          `${micro(each.pieceSeconds)} µs a piece and ${micro(each.roundTripSeconds)} until its end is known\n`,
      );
  }
}

function giga(perSecond: number): string {
  return (perSecond / 1e9).toPrecision(3);
}

function micro(seconds: number): string {
  return (seconds * 1e6).toPrecision(3);
}
