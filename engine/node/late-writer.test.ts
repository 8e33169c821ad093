import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, it, vi } from 'vitest';
import { startSavingRanks } from './fixtures/saving-ranks.ts';

// As the trainer waits, but with a heartbeat every 50 ms and not every second: half a minute is long for a test. The others
// have three of them to write in, on a busy machine too.
vi.mock(import('../trainer/wait-together.ts'), async (original) => {
  const { waitTogether } = await original();
  return {
    waitTogether: (mailbox, region, mine, waiting) =>
      waitTogether(mailbox, region, mine, { ...waiting, beatMs: 50, lateBeats: 3 }),
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
            const told = () => ranks.events.some((e) => e.event === 'log' && e.line.includes('takes long'));
            for (let waited = 0; rank === slow && !told() && waited < 10_000; waited += 10) await sleep(10);
            return disk.writeRankFile(...args);
          },
        }),
      },
    );
    expect((await ranks.results).map(({ status }) => status)).toEqual(['fulfilled', 'fulfilled', 'fulfilled']);
    const line = `the checkpoint after 1 steps takes long: rank ${slow} is still writing, the others wait`;
    expect(ranks.events.filter((e) => e.event === 'log' && e.line === line)).toHaveLength(1);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});
