import { copyFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { parseConfig } from '../config.ts';
import type { RunEvent } from '../trainer/events.ts';
import { runWorkerRanks } from './run-rank.ts';
import { sampleCheckpoint } from './sample-checkpoint.ts';

/** A text in GPT-2's tokens, from the file through a run to a prompt that is continued in words. */

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'gpt2-run-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const model = { kind: 'gpt2', nLayer: 1, nHead: 2, nEmbd: 8, nPositions: 8 };

async function train(vocabSize: number | null): Promise<RunEvent[]> {
  const config = parseConfig({
    model: { ...model, vocabSize },
    data: { kind: 'wikitext2', path: join(folder, 'text.txt'), blockSize: 8, tokenizer: 'gpt2' },
    adapter: 'interpreter',
    optimizer: { kind: 'adam', lr: 0.01 },
    strategy: 'ddp',
    trainer: { steps: 4 },
  });
  const events: RunEvent[] = [];
  await runWorkerRanks(
    {
      type: 'start',
      ranks: [0, 1],
      world: 2,
      config,
      adapterId: 'interpreter',
      sharedFolder: join(folder, 'shared'),
      corpusFolder: join(folder, 'corpora'),
      runFolder: join(folder, 'run'),
      recordTouches: false,
      weightsFile: join(folder, 'model.safetensors'),
    },
    { emit: (event) => events.push(event), stopRequested: () => false, onPhase: () => undefined },
  );
  return events;
}

async function continued(path: string, prompt: string) {
  const sampling = await sampleCheckpoint({ path, prompt, settings: { count: 2 }, corpusFolder: folder });
  const tokens: number[] = [];
  for await (const token of sampling.tokens) tokens.push(token);
  await sampling.close();
  return { prompt: [...sampling.prompt], said: sampling.text(sampling.prompt), tokens, text: sampling.text(tokens) };
}

it('is trained on and continued, from the checkpoint and from a folder of save_pretrained', async () => {
  await writeFile(
    join(folder, 'text.txt'),
    'Call me Ishmael. Some years ago — never mind how long precisely.\n'.repeat(9),
  );
  const events = await train(null);
  const losses = events.flatMap((e) => (e.event === 'step' && e.rank === 0 ? [Number(e.lossMean)] : []));
  expect(losses).toHaveLength(4);
  // A fresh model finds every token equally likely.
  expect(Math.abs(losses[0] - Math.log(50_257))).toBeLessThan(0.1);
  expect(losses[3]).toBeLessThan(losses[0] - 0.05);

  const { path } = events.find((e) => e.event === 'checkpoint') as { path: string };
  await rm(join(folder, 'text.txt')); // its words are not asked for
  const answer = await continued(path, 'Call me Ishmael.');
  expect(answer).toMatchObject({ prompt: [14134, 502, 1148, 21720, 417, 13], said: 'Call me Ishmael.' });
  expect(answer.tokens).toHaveLength(2);
  expect(answer.text?.length).toBeGreaterThan(0);

  const hf = join(folder, 'hf');
  await mkdir(hf);
  await copyFile(join(folder, 'model.safetensors'), join(hf, 'model.safetensors'));
  const json = { model_type: 'gpt2', vocab_size: 50_257, n_layer: 1, n_head: 2, n_embd: 8, n_positions: 8 };
  await writeFile(join(hf, 'config.json'), JSON.stringify(json));
  expect(await continued(hf, 'Call me Ishmael.')).toEqual(answer);
});

it('needs a model that has a row for each token', async () => {
  await writeFile(join(folder, 'text.txt'), 'Call me Ishmael. '.repeat(20));
  const events = await train(101).catch((error: Error) => error);
  expect(String(events instanceof Error ? events.message : JSON.stringify(events))).toMatch(
    /model\.vocabSize: 101 is fewer than GPT-2's 50257 tokens, .*set 50257 or more/,
  );
});
