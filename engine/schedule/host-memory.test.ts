import { describe, expect, it } from 'vitest';
import { parseConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import { compileFirst, smallModel } from './fixtures/small-runs.ts';
import { hostBytesOf, refuseHostMemory } from './host-memory.ts';

const configOf = (extra: object) => parseConfig({ model: smallModel, ...extra });
const offload = { devices: 2, strategy: 'fsdp_cpu_offload' };

describe('host memory of a rank', () => {
  it('is its regions, and with offload two moments of each group more, and its gradients where the norm is to be known first', () => {
    const without = compileFirst({ config: { devices: 2, strategy: 'fsdp' } });
    expect(hostBytesOf(without)).toBe(without.regions.reduce((sum, r) => sum + r.bytes, 0));
    const run = compileFirst({ config: offload });
    const shards = run.steps[0].groups.reduce((sum, g) => sum + g.layout.shardElements * 4, 0);
    // Adam's two moments; the parameters are regions.
    expect(hostBytesOf(run)).toBe(run.regions.reduce((sum, r) => sum + r.bytes, 0) + 2 * shards);
    const clipped = compileFirst({ config: { ...offload, trainer: { gradientClipVal: 1 } } });
    expect(hostBytesOf(clipped)).toBe(hostBytesOf(run) + shards);
    expect(run.regions.reduce((sum, r) => sum + r.bytes, 0)).toBeGreaterThan(shards);
  });

  it('is counted once however many batch shapes there are', () => {
    const shapes = [
      { batch: 1, tokens: 2 },
      { batch: 2, tokens: 3 },
    ];
    const both = compileFirst({ config: offload, shapes });
    expect(hostBytesOf(both)).toBe(hostBytesOf(compileFirst({ config: offload, shapes: shapes.slice(0, 1) })));
  });
});

describe('48: a run that needs more than is free', () => {
  const refusal = (config: object, machine: { freeBytes: number; software: boolean }): StudioError | null => {
    try {
      refuseHostMemory(configOf(config), compileFirst({ config }), machine);
      return null;
    } catch (error) {
      return error as StudioError;
    }
  };

  it('is refused to the byte, all ranks of the machine together', () => {
    const needed = 2 * hostBytesOf(compileFirst({ config: offload }));
    expect(refusal(offload, { freeBytes: needed, software: false })).toBeNull();
    const error = refusal(offload, { freeBytes: needed - 1, software: false });
    expect(error).toBeInstanceOf(StudioError);
    expect(error?.code).toBe('out-of-memory');
    expect(error?.message).toMatch(
      new RegExp(`^strategy.cpuOffload: the 2 ranks together need ${needed} bytes .* has ${needed - 1} free`),
    );
  });

  it('counts the buffers of a software adapter, which are host memory too', () => {
    const run = compileFirst({ config: { devices: 1 } });
    const needed = hostBytesOf(run) + run.memory.reservedBytes;
    expect(refusal({ devices: 1 }, { freeBytes: needed, software: true })).toBeNull();
    expect(refusal({ devices: 1 }, { freeBytes: needed - 1, software: false })).toBeNull();
    expect(refusal({ devices: 1 }, { freeBytes: needed - 1, software: true })?.message).toMatch(/^adapter: the rank/);
    expect(refusal({ devices: 2 }, { freeBytes: 1, software: false })?.message).toMatch(/^devices: /);
  });
});
