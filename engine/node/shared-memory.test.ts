import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describeMailbox } from '../comm/conformance.ts';
import { openSharedMailbox } from './shared-memory.ts';

describeMailbox('over shared memory', async (worldSize, regions, options) => {
  const path = await mkdtemp(join(tmpdir(), 'mailbox-'));
  try {
    return await Promise.all(
      Array.from({ length: worldSize }, (_, rank) =>
        openSharedMailbox({ path, rank, worldSize, regions, spin: false, ...options }),
      ),
    );
  } finally {
    await rm(path, { recursive: true });
  }
});
