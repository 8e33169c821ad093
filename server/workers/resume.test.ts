import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import { contentOf } from '../../engine/node/fixtures/content-of.ts';
import { fromWire, type RunEvent } from '../../engine/trainer/events.ts';
import { launchRun } from './supervisor.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'same-bits-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const tiny = { kind: 'demo-transformer', vocabSize: 10, ninp: 8, nhead: 2, nhid: 8, nlayers: 1 };

function batchesText(): string {
  const batch = (n: number) => ({ input: [n % 7, 2, 3, 9], target: [2, 3, n % 7, 9] });
  return JSON.stringify(Array.from({ length: 6 }, (_, i) => [batch(i), batch(i + 3)]));
}

/** Two ranks in processes of their own, on the bundled software GPU. */
async function train(input: object, runFolder: string) {
  const path = join(folder, 'batches.json');
  await writeFile(path, batchesText());
  await mkdir(runFolder, { recursive: true });
  const events: RunEvent[] = [];
  const run = launchRun({
    config: parseConfig({
      model: tiny,
      data: { kind: 'batches', path },
      ...input,
    }),
    runFolder,
    corpusFolder: folder,
    adapterIds: ['swiftshader', 'swiftshader'],
    recordTouches: false,
    weightsFile: null,
    onEvent: (event) => events.push(event),
  });
  return { run, events };
}

function lossesOf(events: readonly RunEvent[]): Map<string, number> {
  return new Map(events.flatMap((e) => (e.event === 'step' ? [[`${e.step} ${e.rank}`, fromWire(e.loss)]] : [])));
}

describe('on a software GPU, rank by rank in its own process', { timeout: 180_000 }, () => {
  it.each(['ddp', 'fsdp', 'fsdp_cpu_offload'])(
    '%s: a run that was interrupted goes on with the same bits',
    async (strategy) => {
      const whole = await train({ strategy, trainer: { steps: 6 }, checkpoint: { every: 3 } }, join(folder, 'whole'));
      const end = await whole.run.done;
      expect(end.error).toBeUndefined();
      const resume = end.checkpoints[0].path;
      const rest = await train({ strategy, trainer: { steps: 6 }, checkpoint: { resume } }, join(folder, 'rest'));
      expect((await rest.run.done).error).toBeUndefined();
      const wanted = lossesOf(whole.events);
      const resumed = lossesOf(rest.events);
      expect([...resumed.keys()].sort()).toEqual(['3 0', '3 1', '4 0', '4 1', '5 0', '5 1']);
      for (const [key, loss] of resumed) expect(loss, key).toBe(wanted.get(key));
      // Ranks of other processes wrote the same as they would have without the interruption. Files as a whole differ by
      // what the config says and by the name of the save.
      const ends = [end.checkpoints[1].path, (await rest.run.done).checkpoints[0].path];
      const [a, b] = [await contentOf(ends[0]), await contentOf(ends[1])];
      expect(a.size).toBeGreaterThan(3 * 20);
      expect(a).toEqual(b);
    },
  );
});
