import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { seededRandom } from '../ops/kernel-case.ts';
import { SAVING_MARK } from './checkpoint-folder.ts';
import { listCheckpoints } from './checkpoint-list.ts';
import { verifyCheckpoint } from './checkpoint-verify.ts';
import { TEMPORARY_MARK } from './file-bytes.ts';

const STEPS = 2000;
const KILLS = 25;
/** Within so many milliseconds after a checkpoint; a step with its save takes about 30. */
const LONGEST_MS = 100;

let folder: string;
let program: string;
const cache = fileURLToPath(new URL('../../node_modules/.cache/shard-studio/', import.meta.url));

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'checkpoint-kill-'));
  await mkdir(cache, { recursive: true });
  // One file, which starts in a quarter of a second, where its sources take two.
  program = path.join(await mkdtemp(path.join(cache, 'save-trained-')), 'save-trained.mjs');
  await build({
    entryPoints: [fileURLToPath(new URL('./fixtures/save-trained.ts', import.meta.url))],
    bundle: true,
    platform: 'node',
    format: 'esm',
    packages: 'external',
    outfile: program,
  });
  const batch = (n: number) => ({ input: [n % 7, 2, 3, 9], target: [2, 3, n % 7, 9] });
  await writeFile(
    path.join(folder, 'batches.json'),
    JSON.stringify(Array.from({ length: STEPS }, (_, i) => [batch(i), batch(i + 3)])),
  );
});
afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
  await rm(path.dirname(program), { recursive: true, force: true });
});

const isTemporary = (name: string) => name.includes(SAVING_MARK) || name.includes(TEMPORARY_MARK);

describe('29, 31: 50 saves of a training, ended by kill -9 at random moments (all ranks, which share a process here)', () => {
  it.each([
    ['full', 1],
    ['sharded', 2],
  ] as const)(
    '%s: the last checkpoint that was said to be there loads, and so does each that is listed',
    async (format, seed) => {
      const random = seededRandom(seed);
      const runFolder = path.join(folder, format);
      const checkpoints = path.join(runFolder, 'checkpoints');
      let [leftBehind, stepBefore, cutShort] = [[] as string[], 0, 0];
      for (let kill = 0; kill < KILLS; kill++) {
        const resume = (await listCheckpoints(checkpoints)).at(-1)?.path;
        const args = [runFolder, format, path.join(folder, 'batches.json'), String(STEPS)];
        const trainer = spawn(process.execPath, [program, ...args, ...(resume ? [resume] : [])], {
          stdio: ['ignore', 'pipe', 'inherit'],
        });
        let said = '';
        trainer.stdout.on('data', (text) => (said += text));
        await Promise.race([once(trainer.stdout, 'data'), once(trainer, 'exit')]);
        await sleep(random() * LONGEST_MS);
        trainer.kill('SIGKILL');
        await once(trainer.stdout, 'close');

        const listed = await listCheckpoints(checkpoints);
        const announced = said.trim().split('\n');
        expect(announced.at(-1), `kill ${kill}`).toContain('step-');
        expect(listed.map((each) => each.path)).toContain(announced.at(-1));
        for (const each of listed) expect((await verifyCheckpoint(each.path)).digests).toBe(true);
        expect(listed.at(-1)!.step).toBeGreaterThan(stepBefore);
        stepBefore = listed.at(-1)!.step;

        // What the kill before left went when this training began.
        const names = await readdir(checkpoints);
        for (const name of leftBehind) expect(names).not.toContain(name);
        leftBehind = names.filter(isTemporary);
        cutShort += leftBehind.length > 0 ? 1 : 0;
      }
      // The moments were not all between two saves.
      expect(cutShort).toBeGreaterThan(0);
    },
  );
});
