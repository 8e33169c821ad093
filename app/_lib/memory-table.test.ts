import { expect, it } from 'vitest';
import { parseMemoryTable } from './memory-table.ts';

it('reads the sections, heads and rows of a memory summary', () => {
  const text = `|===========================================================================|
|                WebGPU buffers of this worker, device ID 0                 |
|---------------------------------------------------------------------------|
|             GPU OOMs: 0            |        allocation retries: 0         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |   7770 KiB |  34190 KiB |   3097 MiB |      0 B   |
|       from large pool |   7734 KiB |  33831 KiB |   3001 MiB |   2994 MiB |
|===========================================================================|
|                        By category, on interpreter                        |
|===========================================================================|
|       Category        | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
| parameters            |   2589 KiB |   2589 KiB |   2589 KiB |      0 B   |`;
  const heads = ['Cur Usage', 'Peak Usage', 'Tot Alloc', 'Tot Freed'];
  expect(parseMemoryTable(text)).toEqual([
    {
      titles: ['WebGPU buffers of this worker, device ID 0', 'GPU OOMs: 0', 'allocation retries: 0'],
      heads,
      rows: [
        { name: 'Allocated memory', isPart: false, values: ['7770 KiB', '34190 KiB', '3097 MiB', '0 B'] },
        { name: 'from large pool', isPart: true, values: ['7734 KiB', '33831 KiB', '3001 MiB', '2994 MiB'] },
      ],
    },
    {
      titles: ['By category, on interpreter'],
      heads,
      rows: [{ name: 'parameters', isPart: false, values: ['2589 KiB', '2589 KiB', '2589 KiB', '0 B'] }],
    },
  ]);
  expect(parseMemoryTable('nothing of the kind')).toEqual([]);
});
