import { expect, it } from 'vitest';
import { toText } from './checkpoint.ts';

it('a tensor whose name has control characters is one line without any', () => {
  const tensor = { name: 'w\u001b[2J\nfake\u202e', dtype: 'float32', shape: [1], parts: [{}] };
  const found = { kind: 'full', bytes: 1, files: [{}], params: 1, tensors: [tensor], optimizers: [] };
  const rest = { iter: null, samples: null, config: null };
  const lines = toText('x.ckpt', { ...found, ...rest } as unknown as Parameters<typeof toText>[1], false).split('\n');
  expect(lines).toHaveLength(3);
  expect(lines[2].trim()).toMatch(/^w\\u001b\[2J\\u000afake\\u202e {2}float32/);
});
