import { describe, expect, it } from 'vitest';
import { simulatedLinkGBps, simulatedLinkNote } from './simulated-link.ts';

const linked = (linkGBps: number | null) => ({
  strategy: { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', linkGBps },
});

describe('a simulated link', () => {
  it('is read from the strategy, and only from there', () => {
    expect(simulatedLinkGBps(linked(2.5))).toBe(2.5);
    expect(simulatedLinkGBps(linked(null))).toBeNull();
    expect(simulatedLinkGBps({ strategy: 'ddp' })).toBeNull();
    expect(simulatedLinkGBps(null)).toBeNull();
  });

  it('is said where some run has one, with each rate once', () => {
    expect(simulatedLinkNote([linked(null), { strategy: { kind: 'ddp' } }])).toBeNull();
    expect(simulatedLinkNote([linked(5), linked(null), linked(5)])).toBe('simulated link, 5 GB/s');
    expect(simulatedLinkNote([linked(5), linked(1)])).toBe('simulated link, 5 and 1 GB/s');
  });
});
