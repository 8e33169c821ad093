import { describe, expect, test } from 'vitest';
import { assertUnshared } from './unshared.ts';

describe('assertUnshared', () => {
  test('passes views over ordinary memory', () => {
    const view = new Float32Array(4).subarray(1);
    expect(assertUnshared(view)).toBe(view);
  });

  test.each([
    ['a typed array', new Float32Array(new SharedArrayBuffer(16))],
    ['a part of one', new Uint8Array(new SharedArrayBuffer(16), 4, 4)],
    ['a DataView', new DataView(new SharedArrayBuffer(16))],
    ['a Node buffer', Buffer.from(new SharedArrayBuffer(16))],
  ])('refuses %s over shared memory', (_, view) => {
    expect(() => assertUnshared(view)).toThrow(TypeError);
  });
});
