import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pino } from 'pino';
import { afterEach, beforeEach, expect, it } from 'vitest';
import type { AdapterEntry } from '../../engine/node/adapters.ts';
import { readCalibration, writeCalibration } from '../../engine/node/calibration-store.ts';
import { ratesOf } from '../../engine/schedule/fixtures/rates-of.ts';
import { builtInProfiles } from '../../engine/schedule/profile.ts';
import { openTestStudio } from '../fixtures/test-studio.ts';
import { IdleCalibration } from './idle-calibration.ts';

const entry = (id: string) => ({ id, name: `GPU ${id}`, driver: 'one 1.0' }) as AdapterEntry;
const machine = [entry('a'), entry('b')];
const rates = ratesOf(builtInProfiles.h200);

let folder: string;
let open: IdleCalibration[];
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'idle-'));
  open = [];
});
afterEach(async () => {
  for (const calibration of open) await calibration.close();
  await rm(folder, { recursive: true });
});

/** A machine whose cores others keep busy by this share, at each reading since the one before. */
function machineLoad(share: () => number) {
  let ticks = { total: 0, idle: 0, own: 0 };
  return () => {
    ticks = { total: ticks.total + 100, idle: ticks.idle + 100 * (1 - share()), own: 0 };
    return ticks;
  };
}

/** With a measurement that takes until it is told, or no time. */
function calibration(measure: (id: string, signal: AbortSignal) => Promise<typeof rates>, share = () => 0) {
  const held = new Map<string, string>();
  const measured: string[] = [];
  const idle = new IdleCalibration({
    adapters: async () => machine,
    held,
    dataFolder: folder,
    measure: ([id], signal) => {
      measured.push(id);
      return measure(id, signal);
    },
    log: pino({ level: 'silent' }),
    idleMs: 50,
    readTicks: machineLoad(share),
  });
  open.push(idle);
  /** A run on an adapter, and then nothing. */
  const use = async (id: string) => {
    held.set(id, 'a run');
    await sleep(40);
    held.clear();
  };
  return { idle, held, measured, use };
}

async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await holds())) await sleep(5);
}
const kept = async (id: string) => (await readCalibration(folder, entry(id))) !== null;

it('measures what a run has used, once, when nothing runs', async () => {
  const { measured, use } = calibration(async () => rates);
  await sleep(200);
  expect(measured).toEqual([]);
  await use('b');
  await until(() => kept('b'));
  await use('b');
  await sleep(200);
  expect(measured).toEqual(['b']);
  expect(await kept('a')).toBe(false);
});

it('not what was calibrated before', async () => {
  await writeCalibration(folder, machine[0], rates);
  const { measured, use } = calibration(async () => rates);
  await use('a');
  await use('b');
  await until(() => kept('b'));
  expect(measured).toEqual(['b']);
});

it('a run that begins meanwhile ends it, and it is measured again after that', async () => {
  let finish = (): void => undefined;
  let ended = 0;
  const { held, measured, use } = calibration((_, signal) => {
    // The first pays no heed to the signal: what it finds is thrown away all the same.
    if (measured.length === 1)
      return new Promise((resolve) => {
        finish = () => resolve(rates);
      });
    if (measured.length > 2) return Promise.resolve(rates);
    return new Promise((_resolve, reject) => {
      signal.addEventListener('abort', () => {
        ended++;
        reject(new Error('aborted'));
      });
    });
  });
  await use('a');
  await until(() => measured.length === 1);
  held.set('a', 'another run');
  await sleep(20);
  finish();
  await sleep(50);
  expect(await kept('a')).toBe(false);
  held.clear();
  await until(() => measured.length === 2);
  await use('b');
  expect(ended).toBe(1);
  await until(() => kept('a'));
});

it('one that cannot be measured is left alone, and says why', async () => {
  const { idle, measured, use } = calibration(() => Promise.reject(new Error('it crashed')));
  await use('a');
  await until(() => measured.length === 1);
  await sleep(200);
  expect(measured).toEqual(['a']);
  expect(idle.stateOf('a')).toEqual({ state: 'failed', note: 'Its rates were not measured: it crashed' });
});

it('waits while others keep the machine busy, and says so', async () => {
  let share = 0.63;
  const { idle, measured, use } = calibration(
    async () => rates,
    () => share,
  );
  await use('a');
  await until(() => idle.stateOf('a').note.includes('other work takes 63 %'));
  await sleep(200);
  expect(measured).toEqual([]);
  share = 0.05;
  await until(() => kept('a'));
  expect(idle.stateOf('a')).toEqual({ state: 'none', note: '' });
});

it('throws away what it measured while the machine was busy, and measures again when it is quiet', async () => {
  let share = 0;
  const { idle, measured, use } = calibration(
    async () => {
      share = measured.length === 1 ? 0.5 : 0;
      return rates;
    },
    () => share,
  );
  await use('a');
  await until(() => idle.stateOf('a').note.includes('other work takes 50 %'));
  expect(await kept('a')).toBe(false);
  share = 0;
  await until(() => kept('a'));
  expect(measured).toEqual(['a', 'a']);
});

it('measures what is asked for, also if it was before; not what is not there', async () => {
  await writeCalibration(folder, machine[0], rates);
  const again = { ...rates, dispatchSeconds: 1 };
  const { idle, measured } = calibration(async () => again);
  await expect(idle.ask('c')).rejects.toThrow('There is no adapter c here.');
  await idle.ask('a');
  expect(idle.stateOf('a').state).toBe('waiting');
  await until(async () => (await readCalibration(folder, machine[0]))?.dispatchSeconds === 1);
  expect(measured).toEqual(['a']);
});

it('the studio lists the rates of an adapter once a run has used it', async () => {
  const test = await openTestStudio({ calibrate: async () => rates, readTicks: () => null });
  const listed = async () =>
    ((await test.api.get('/devices')).body as { adapters: { rates: unknown }[] }).adapters[0].rates;
  try {
    const { id } = await test.api.create({ name: 'ok', trainer: { steps: 1 } });
    expect(await listed()).toBeNull();
    await test.api.until(id, 'finished');
    await until(async () => (await listed()) !== null);
    expect(await listed()).toEqual(rates);
  } finally {
    await test.close();
  }
});
