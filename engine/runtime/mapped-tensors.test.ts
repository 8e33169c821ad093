import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { ExecutableRun } from '../schedule/compile.ts';
import { BufferLedger } from './buffer-ledger.ts';
import { MappedBuffer, MappedTensors } from './mapped-tensors.ts';

beforeEach(() => {
  vi.stubGlobal('GPUMapMode', { READ: 1, WRITE: 2 });
  vi.stubGlobal('GPUBufferUsage', { MAP_READ: 1, COPY_DST: 8 });
});
afterEach(() => void vi.unstubAllGlobals());

/** A buffer whose maps end when the test says so. */
function fakeBuffer(size: number) {
  const maps: (() => void)[] = [];
  const fake = {
    size,
    mapState: 'unmapped',
    mapAsync: () =>
      new Promise<void>((resolve) =>
        maps.push(() => {
          fake.mapState = 'mapped';
          resolve();
        }),
      ),
    getMappedRange: () => new ArrayBuffer(size),
    unmap: () => {
      fake.mapState = 'unmapped';
    },
    destroy: () => undefined,
  };
  return { fake, buffer: fake as unknown as GPUBuffer, deviceIsDone: () => maps.shift()!() };
}

test('whoever reads a mapped buffer waits for the last copy into it, one that began meanwhile included', async () => {
  const { buffer, deviceIsDone } = fakeBuffer(16);
  const mapped = new MappedBuffer(buffer);
  deviceIsDone();
  const before = await mapped.bytes();
  before.fill(1);
  expect((await mapped.bytes())[0]).toBe(1);

  let after: Uint8Array | undefined;
  const reading = mapped.bytes().then((bytes) => {
    after = bytes;
  });
  mapped.fill((to) => expect(to).toBe(buffer));
  await new Promise((resolve) => setTimeout(resolve, 0));
  expect(after).toBeUndefined();
  deviceIsDone();
  await reading;
  expect(after).not.toBe(before);
});

test('bytes that are gone with their device are not read', async () => {
  const { fake, buffer, deviceIsDone } = fakeBuffer(16);
  const mapped = new MappedBuffer(buffer);
  deviceIsDone();
  await mapped.bytes();
  fake.mapState = 'unmapped';
  await expect(mapped.bytes()).rejects.toMatchObject({ code: 'device-lost' });
});

/** A run that keeps two tensors of 48 bytes in these parts, [offset, bytes] of both. */
async function keeping(...cuts: (readonly [number, number])[]) {
  const made: number[] = [];
  const device = {
    pushErrorScope: () => undefined,
    popErrorScope: async () => null,
    createBuffer: ({ size }: { size: number }) => {
      made.push(size);
      const { buffer, deviceIsDone } = fakeBuffer(size);
      setTimeout(deviceIsDone, 0);
      return buffer;
    },
  };
  const ledger = new BufferLedger(device as unknown as GPUDevice);
  const tensors = ['a', 'b'].map((name, id) => ({ id, name, bytes: 48, space: 'host', mapped: true }));
  const steps = cuts.map(([offsetBytes, bytes]) => {
    const parts = [0, 1].map((tensor) => ({
      host: { tensor, offsetBytes, bytes },
      device: { tensor: 2, offsetBytes: 0, bytes },
    }));
    return { unit: 'u', action: { type: 'keep', parts } };
  });
  const run = { steps: [{ schedule: { tensors, steps } }] } as unknown as ExecutableRun;
  const mapped = await MappedTensors.create(run, ledger);
  return { run, mapped, made, ledger };
}

test('a range is seen through all buffers that have parts of it, and counted as host memory', async () => {
  const { run, mapped, made, ledger } = await keeping([16, 32], [0, 16], [0, 16]);
  expect(made).toEqual([64, 32]);
  expect([ledger.hostBytes, ledger.currentBytes]).toEqual([96, 0]);
  const [step] = run.steps;
  const whole = await mapped.bytes(step, { tensor: 1, offsetBytes: 0, bytes: 48 });
  expect(whole.map(({ length }) => length)).toEqual([16, 32]);
  let next = 0;
  for (const piece of whole) piece.set(piece.map(() => next++));
  const middle = await mapped.bytes(step, { tensor: 1, offsetBytes: 12, bytes: 8 });
  expect(middle.map((piece) => [...piece])).toEqual([
    [12, 13, 14, 15],
    [16, 17, 18, 19],
  ]);
  const other = await mapped.bytes(step, { tensor: 0, offsetBytes: 0, bytes: 48 });
  expect(other.flatMap((piece) => [...piece])).toEqual(Array.from({ length: 48 }, () => 0));
});

test.each([
  [
    'a gap',
    [
      [0, 16],
      [32, 16],
    ],
  ],
  ['an end that is missing', [[0, 32]]],
  [
    'parts that overlap',
    [
      [0, 32],
      [16, 32],
    ],
  ],
  [
    'a part cut in another way too',
    [
      [0, 48],
      [0, 16],
    ],
  ],
] as const)('%s is refused', async (_, cuts) => {
  await expect(keeping(...cuts)).rejects.toMatchObject({ code: 'invalid-schedule' });
});
