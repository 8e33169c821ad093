import { describe, expect, test } from 'vitest';
import { openDevice } from '../runtime/device.ts';
import { type HeldMemory, openAdapter } from './adapters.ts';
import { refuseGrowthElsewhere, refuseOtherDevice } from './device-check.ts';

const MiB = 2 ** 20;
const [first, second] = ['0000:1b:00.0', '0000:43:00.0'];
const held = (a: number | null, b: number | null): HeldMemory[] => [
  { id: first, name: 'NVIDIA H200', bytes: a },
  { id: second, name: 'NVIDIA H200', bytes: b },
];
const assigned = { id: second, name: 'NVIDIA H200', icdPath: '/icd.json' };

describe('a rank runs on the GPU that it was given', () => {
  test('which holds what the rank takes', () => {
    expect(() => refuseGrowthElsewhere(assigned, held(500 * MiB, 20 * MiB), held(501 * MiB, 280 * MiB))).not.toThrow();
  });

  test('and on no other: the error names both', () => {
    expect(() => refuseGrowthElsewhere(assigned, held(0, 20 * MiB), held(258 * MiB, 20 * MiB))).toThrow(
      expect.objectContaining({
        code: 'no-adapter',
        message: expect.stringContaining(
          `given NVIDIA H200 (${second}), but the device that Vulkan opened is NVIDIA H200 (${first})`,
        ),
        details: { assigned: second, got: first },
      }),
    );
  });

  test('and not where nothing grew', () => {
    expect(() => refuseGrowthElsewhere(assigned, held(0, 0), held(0, 9 * MiB))).toThrow(
      expect.objectContaining({ code: 'no-adapter', details: { assigned: second, got: null } }),
    );
  });

  test('as far as the driver tells', () => {
    expect(() => refuseGrowthElsewhere(assigned, held(null, null), held(null, null))).not.toThrow();
  });

  test('asked of a device before it trains', async () => {
    const open = await openDevice((await openAdapter('swiftshader')).adapter);
    const readings = (then: HeldMemory[]) => {
      const said = [held(0, 0), then];
      return async () => said.shift()!;
    };
    try {
      await refuseOtherDevice(assigned, open.device, readings(held(0, 256 * MiB)));
      await expect(refuseOtherDevice(assigned, open.device, readings(held(256 * MiB, 0)))).rejects.toMatchObject({
        code: 'no-adapter',
        details: { assigned: second, got: first },
      });
    } finally {
      open.close();
    }
  });
});
