import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { bytesSource } from '../checkpoint/byte-source.ts';
import { openWeights } from '../checkpoint/fixtures/read-weights.ts';
import { parseConfig } from '../config.ts';
import type { RunEvent } from '../trainer/events.ts';
import { runWorkerRanks } from './run-rank.ts';
import { sampleCheckpoint } from './sample-checkpoint.ts';

/** A run of GPT-2 and Llama from end to end: Hugging Face's file in, a checkpoint out, and what can be done with it. */

const testdata = (name: string) => fileURLToPath(new URL(`../testdata/${name}`, import.meta.url));

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'language-run-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const models = {
  gpt2: { kind: 'gpt2', nLayer: 2, nHead: 4, nEmbd: 32, nPositions: 24, vocabSize: 101 },
  llama: {
    kind: 'llama',
    hiddenSize: 32,
    intermediateSize: 88,
    numHiddenLayers: 2,
    numAttentionHeads: 4,
    numKeyValueHeads: 2,
    vocabSize: 101,
  },
};
type Kind = keyof typeof models;

/** Trains on the reference's batches with the interpreter. Gives the losses of rank 0 and the checkpoint's path. */
async function train(kind: Kind, name: string, config: object): Promise<{ losses: number[]; path: string }> {
  const events: RunEvent[] = [];
  const data = { kind: 'batches', path: testdata(`${kind}/batches.json`) };
  const optimizer = { kind: 'adamw', lr: 2e-3, weightDecay: 0.1 };
  const checkpoint = { format: 'full' };
  const parsed = parseConfig({ model: models[kind], data, optimizer, adapter: 'interpreter', checkpoint, ...config });
  await runWorkerRanks(
    {
      type: 'start',
      ranks: Array.from({ length: parsed.devices }, (_, rank) => rank),
      world: parsed.devices,
      config: parsed,
      adapterId: 'interpreter',
      sharedFolder: join(folder, 'shared'),
      corpusFolder: join(folder, 'corpora'),
      runFolder: join(folder, name),
      recordTouches: false,
      weightsFile: join(folder, `${name}.safetensors`),
    },
    { emit: (event) => events.push(event), stopRequested: () => false, onPhase: () => undefined },
  );
  const losses = events.flatMap((e) => (e.event === 'step' && e.rank === 0 ? [Number(e.loss)] : []));
  const saved = events.find((e) => e.event === 'checkpoint');
  return { losses, path: (saved as { path: string }).path };
}

const weightsOf = async (path: string) => openWeights(bytesSource(path, readFileSync(path)));

describe.each(['gpt2', 'llama'] as const)('%s', (kind) => {
  it('trains from the file of save_pretrained, is saved, loaded again and sampled', async () => {
    const from = testdata(`${kind}/hf/model.safetensors`);
    const expected = JSON.parse(readFileSync(testdata(`${kind}/expected.json`), 'utf8'));
    const whole = await train(kind, 'whole', { devices: 1, init: { from } });
    whole.losses.forEach((loss, step) => {
      expect(Math.abs(loss / expected.adamw_world1[step].losses[0][0] - 1)).toBeLessThan(1e-4);
    });

    const saved = await weightsOf(whole.path);
    const original = await weightsOf(from);
    // What torch's state_dict has: a tied head under its own name as well.
    const also = kind === 'gpt2' ? ['lm_head.weight'] : [];
    expect(saved.names.toSorted()).toEqual([...original.names, ...also].toSorted());
    expect((await weightsOf(join(folder, 'whole.safetensors'))).names.toSorted()).toEqual(original.names.toSorted());
    if (kind === 'gpt2')
      expect(await saved.readFloat32('lm_head.weight')).toEqual(await saved.readFloat32('transformer.wte.weight'));

    const again = await train(kind, 'again', { devices: 2, init: { from: whole.path }, trainer: { steps: 1 } });
    const other = await train(kind, 'other', {
      devices: 2,
      init: { from: join(folder, 'whole.safetensors') },
      trainer: { steps: 1 },
    });
    expect(again.losses).toEqual(other.losses);

    const all: number[] = expected.greedy_after_adamw_world1;
    const request = { path: whole.path, settings: { count: 10 }, corpusFolder: folder };
    const sampling = await sampleCheckpoint({ ...request, prompt: all.slice(0, 4) });
    const tokens: number[] = [];
    for await (const token of sampling.tokens) tokens.push(token);
    await sampling.close();
    expect(tokens).toEqual(all.slice(4));
  });
});
