import { describe, expect, it } from 'vitest';
import { blockedBy, placeRun } from './slots.ts';

const gpu = (id: string, name = 'NVIDIA H200') => ({ id, name, software: false });
const swiftshader = { id: 'swiftshader', name: 'SwiftShader Device', software: true };

describe('placeRun', () => {
  it('shares the only adapter between all ranks', () => {
    expect(placeRun({ adapter: 'auto', devices: 2 }, [swiftshader])).toEqual({
      adapterIds: ['swiftshader', 'swiftshader'],
      slots: ['swiftshader'],
    });
  });

  it('gives each rank its own GPU on auto while there are GPUs of one kind', () => {
    const adapters = [gpu('0000:01:00.0'), gpu('0000:02:00.0'), gpu('0000:03:00.0', 'another'), swiftshader];
    expect(placeRun({ adapter: 'auto', devices: 3 }, adapters)).toEqual({
      adapterIds: ['0000:01:00.0', '0000:02:00.0', '0000:01:00.0'],
      slots: ['0000:01:00.0', '0000:02:00.0'],
    });
    expect(placeRun({ adapter: 'auto', devices: 1 }, adapters).slots).toEqual(['0000:01:00.0']);
  });

  it('puts all ranks where a name points', () => {
    const adapters = [gpu('0000:01:00.0'), gpu('0000:02:00.0'), swiftshader];
    expect(placeRun({ adapter: '0000:02:00.0', devices: 2 }, adapters).slots).toEqual(['0000:02:00.0']);
    expect(placeRun({ adapter: 'software', devices: 2 }, adapters).slots).toEqual(['swiftshader']);
  });

  it('runs the interpreter without any adapter', () => {
    expect(placeRun({ adapter: 'interpreter', devices: 4 }, [])).toEqual({
      adapterIds: ['interpreter'],
      slots: ['interpreter'],
    });
  });

  it('says what there is when nothing fits', () => {
    expect(() => placeRun({ adapter: 'voodoo', devices: 1 }, [swiftshader])).toThrow(/voodoo.*SwiftShader/);
  });
});

describe('blockedBy', () => {
  it('is the first slot that another run holds', () => {
    const placement = { adapterIds: ['a', 'b'], slots: ['a', 'b'] };
    expect(blockedBy(placement, new Map([['c', 'x']]))).toBeNull();
    expect(blockedBy(placement, new Map([['b', 'x']]))).toEqual({ slot: 'b', runId: 'x' });
  });
});
