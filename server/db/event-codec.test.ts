import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { CATEGORIES } from '../../engine/schedule/schedule.ts';
import { type RunEvent, type StepEvent, toWire } from '../../engine/trainer/events.ts';
import { CHUNK_VERSION, decodeChunk, encodeEvent } from './event-codec.ts';

const chunk = (events: readonly RunEvent[]) =>
  Buffer.concat([Uint8Array.of(CHUNK_VERSION), ...events.map((event) => encodeEvent(event))]);

const bytes = fc.nat({ max: 2 ** 31 - 1 }).map((n) => n * 4194301);
const measured = fc.double().map((x) => toWire(x === 0 ? 0 : x));
const step: fc.Arbitrary<StepEvent> = fc.record({
  event: fc.constant('step' as const),
  rank: fc.nat({ max: 7 }),
  step: fc.nat({ max: 10_000_000 }),
  loss: measured,
  lossMean: measured,
  gradNorm: measured,
  iterationMs: fc.double({ min: 0, max: 1e9, noNaN: true }),
  tokens: fc.nat(),
  memory: fc.record({
    currentBytes: bytes,
    peakBytes: bytes,
    liveBytes: bytes,
    byCategory: fc.record(Object.fromEntries(CATEGORIES.map((name) => [name, bytes]))) as fc.Arbitrary<
      StepEvent['memory']['byCategory']
    >,
    hostBytes: bytes,
    allocRetries: fc.nat(),
    ooms: fc.nat(),
  }),
});
const log = fc.record({
  event: fc.constant('log' as const),
  rank: fc.option(fc.nat({ max: 7 }), { nil: null }),
  line: fc.string({ unit: 'grapheme' }),
});

describe('a chunk', () => {
  it('gives back every event as it was, words for what is not finite among them', () => {
    fc.assert(
      fc.property(fc.array(fc.oneof(step, log), { maxLength: 20 }), (events) => {
        expect([...decodeChunk(chunk(events))]).toEqual(events);
      }),
    );
  });

  it('takes 151 bytes for a step', () => {
    const [event] = fc.sample(step, 1);
    expect(encodeEvent(event).length).toBe(151);
  });

  it('is refused when it is of another version, cut or damaged', () => {
    const whole = chunk([{ event: 'log', rank: null, line: 'a line' }]);
    expect(() => [...decodeChunk(Uint8Array.of(9))]).toThrow(/version 9/);
    expect(() => [...decodeChunk(whole.subarray(0, -1))]).toThrow(RangeError);
    whole[1] = 77;
    expect(() => [...decodeChunk(whole)]).toThrow(/unknown record 77/);
  });
});
