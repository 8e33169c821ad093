import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, it } from 'vitest';
import { StudioError } from '../errors.ts';
import { DeviceFailure } from './device.ts';

const lost = new StudioError('device-lost', 'gone');
const never = () => new Promise<never>(() => undefined);

describe('the failure of a device', () => {
  it('passes on what work gives, and errors of peers at once', async () => {
    const failure = new DeviceFailure();
    expect(await failure.guard(Promise.resolve(3))).toBe(3);
    const peer = new StudioError('peer-lost', 'rank 1 is gone');
    await expect(failure.guard(Promise.reject(peer))).rejects.toBe(peer);
  });

  it('ends every wait, those that begin later as well', async () => {
    const failure = new DeviceFailure();
    const waits = [failure.guard(never()), failure.guard(never())];
    failure.fail(lost);
    failure.fail(new StudioError('internal', 'a second one'));
    for (const wait of waits) await expect(wait).rejects.toBe(lost);
    await expect(failure.guard(never())).rejects.toBe(lost);
    await expect(failure.guard(Promise.reject(new Error('late')))).rejects.toBe(lost);
  });

  it('is what an error of the device is told as, when the device explains it a little later', async () => {
    const failure = new DeviceFailure();
    const wait = failure.guard(Promise.reject(new Error('map aborted')));
    setTimeout(() => failure.fail(lost), 20);
    await expect(wait).rejects.toBe(lost);
    const unexplained = new DeviceFailure().guard(Promise.reject(new Error('map aborted')));
    await expect(unexplained).rejects.toThrow('map aborted');
  });

  it('keeps nothing of what is over', async () => {
    setFlagsFromString('--expose-gc');
    const collect: () => void = runInNewContext('gc');
    const failure = new DeviceFailure();
    const make = async () => {
      const value = new Float32Array(1000);
      await failure.guard(Promise.resolve(value));
      return new WeakRef(value);
    };
    const values = await Promise.all(Array.from({ length: 20 }, make));
    await new Promise((resolve) => setTimeout(resolve, 20));
    collect();
    expect(values.filter((v) => v.deref() !== undefined)).toEqual([]);
  });
});
