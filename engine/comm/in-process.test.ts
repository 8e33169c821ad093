import { describe, expect, test } from 'vitest';
import { describeMailbox } from './conformance.ts';
import { reached } from './counted-mailbox.ts';
import { openInProcessMailboxes, openSoloMailbox } from './in-process.ts';

describeMailbox('in one process', async (worldSize, regions, options) =>
  openInProcessMailboxes(worldSize, regions, options),
);

describe('openSoloMailbox', () => {
  test('is a group of one', async () => {
    const solo = openSoloMailbox([{ name: 'a', bytes: 8, readsPerPublication: 2 }]);
    expect([solo.rank, solo.worldSize]).toEqual([0, 1]);
    await solo.beginWrite(0);
    solo.publish(0);
    await solo.beginWrite(0);
  });
});

describe('reached', () => {
  test('holds across the wrap of an int32 counter', () => {
    const counter = new Int32Array(1);
    counter[0] = 2 ** 31 + 5;
    expect(reached(counter[0], 2 ** 31 + 5)).toBe(true);
    expect(reached(counter[0], 2 ** 31 + 6)).toBe(false);
    counter[0] = 2 ** 32;
    expect(reached(counter[0], 2 ** 32 - 3)).toBe(true);
    expect(reached(counter[0], 2 ** 32 + 1)).toBe(false);
  });
});
