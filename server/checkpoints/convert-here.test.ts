import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { verifyCheckpoint } from '../../engine/node/checkpoint-verify.ts';
import type { CheckpointKind } from '../contract.ts';
import { openDataFolder } from '../data-folder.ts';
import { BroughtCheckpoints } from './brought-checkpoints.ts';
import { convertHere } from './convert-here.ts';

const zoo = fileURLToPath(new URL('../../engine/testdata/zoo.pt', import.meta.url));

it.each<CheckpointKind>(['full', 'sharded'])(
  'two conversions to one name at once each end with a checkpoint: %s',
  async (kind) => {
    const work = await mkdtemp(join(tmpdir(), 'convert-here-'));
    try {
      const folder = await openDataFolder(work);
      const brought = new BroughtCheckpoints(folder);
      const converted = async () => {
        // Of characters of two code units, and called as a list of digests.
        const wanted = { from: zoo, kind, ranks: undefined, name: `${'𠮷'.repeat(10)}.sha256` };
        let last: unknown = null;
        for await (const line of convertHere(wanted, folder.uploads, brought, new AbortController().signal))
          last = line;
        return last;
      };
      const ending = kind === 'full' ? '.ckpt' : '';
      const names = ['', '-2'].map((number) => `${'𠮷'.repeat(10)}${number}${ending}`);
      const ends = (await Promise.all([converted(), converted()])) as { checkpoint?: { name: string } }[];
      expect(ends.map((end) => end.checkpoint?.name ?? end).sort()).toEqual([...names].sort());
      expect((await readdir(folder.uploads)).sort()).toEqual(names.flatMap((name) => [name, `${name}.sha256`]).sort());
      for (const name of names)
        expect(await verifyCheckpoint(join(folder.uploads, name))).toEqual({ kind, digests: true });
    } finally {
      await rm(work, { recursive: true, force: true });
    }
  },
  60_000,
);
