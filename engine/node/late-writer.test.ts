import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it, vi } from 'vitest';
import { startSavingRanks } from './fixtures/saving-ranks.ts';

// As the trainer waits, but with a heartbeat every 5 ms and not every second: half a minute is long for a test.
vi.mock(import('../trainer/wait-together.ts'), async (original) => {
  const { waitTogether } = await original();
  return {
    waitTogether: (mailbox, region, mine, waiting) =>
      waitTogether(mailbox, region, mine, { ...waiting, beatMs: 5, lateBeats: 3 }),
  };
});

it.each([1, 2])('32: the log names the rank that still writes, once: rank %i of 3', async (slow) => {
  const folder = await mkdtemp(join(tmpdir(), 'late-writer-'));
  try {
    const ranks = await startSavingRanks(
      folder,
      { devices: 3, strategy: { kind: 'fsdp' }, trainer: { steps: 1 }, checkpoint: { format: 'sharded' } },
      {
        store: (disk, rank) => ({
          ...disk,
          writeRankFile: async (...args) => {
            if (rank === slow) await sleep(500);
            return disk.writeRankFile(...args);
          },
        }),
      },
    );
    expect((await ranks.results).map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'fulfilled']);
    const line = `the checkpoint after 1 steps takes long: rank ${slow} is still writing, the others wait`;
    // A busy machine may be late with rank 0's part, too.
    expect(ranks.events.filter((e) => e.event === 'log' && e.line === line)).toHaveLength(1);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});
