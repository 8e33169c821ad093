import { expect, test, vi } from 'vitest';
import { UploadSlot } from './staging.ts';

/** A buffer whose maps end when the test says so. */
function buffer() {
  const maps: (() => void)[] = [];
  const bytes = new ArrayBuffer(16);
  const fake = {
    mapAsync: () => new Promise<void>((resolve) => maps.push(resolve)),
    getMappedRange: () => bytes,
    unmap: () => undefined,
  };
  return { fake: fake as unknown as GPUBuffer, deviceIsDone: () => maps.shift()!() };
}

test('several users wait for a slot, and each is let in when the one before has handed it over and the device is done', async () => {
  vi.stubGlobal('GPUMapMode', { READ: 1, WRITE: 2 });
  const { fake, deviceIsDone } = buffer();
  const slot = new UploadSlot(fake);
  const order: number[] = [];
  const users = [1, 2, 3].map((user) => slot.open(16).then(() => order.push(user)));
  deviceIsDone();
  await users[0];
  for (const user of [1, 2]) {
    expect(order).toEqual([1, 2].slice(0, user));
    slot.seal();
    slot.reopen();
    await Promise.resolve();
    expect(order).toHaveLength(user);
    deviceIsDone();
    await users[user];
  }
  expect(order).toEqual([1, 2, 3]);
  vi.unstubAllGlobals();
});
