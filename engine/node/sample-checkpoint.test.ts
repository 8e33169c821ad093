import { readFileSync } from 'node:fs';
import { cp, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { contentTree } from '../checkpoint/checkpoint-content.ts';
import { checkpointContent } from '../checkpoint/run-content.ts';
import { writeTorchFile } from '../checkpoint/torch-file-writer.ts';
import { parseConfig } from '../config.ts';
import { buildModel } from '../model/build-model.ts';
import { initialValues } from '../model/init.ts';
import { elementsOf } from '../ops/graph.ts';
import { type SampleRequest, type Sampling, sampleCheckpoint } from './sample-checkpoint.ts';
import { createFileSink } from './whole-file.ts';

const testdata = (name: string) => fileURLToPath(new URL(`../testdata/${name}`, import.meta.url));
const greedy = (kind: string): number[] =>
  JSON.parse(readFileSync(testdata(`${kind}/expected.json`), 'utf8')).greedy_after_adamw_world1;

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'sample-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

async function sample(request: Partial<SampleRequest> & { path: string }): Promise<{ tokens: number[]; of: Sampling }> {
  const of = await sampleCheckpoint({
    prompt: [1],
    settings: { count: 10 },
    corpusFolder: join(folder, 'corpora'),
    ...request,
  });
  const tokens: number[] = [];
  try {
    for await (const token of of.tokens) tokens.push(token);
  } finally {
    await of.close();
  }
  return { tokens, of };
}

describe.each(['gpt2', 'llama'])('a folder of save_pretrained: %s', (kind) => {
  it('continues as generate() does, from the folder and from the file in it', async () => {
    await cp(testdata(`${kind}/hf/config.json`), join(folder, 'config.json'));
    await cp(testdata(`${kind}/adamw_world1_final.safetensors`), join(folder, 'model.safetensors'));
    const all = greedy(kind);
    for (const path of [folder, join(folder, 'model.safetensors')]) {
      const { tokens, of } = await sample({ path, prompt: all.slice(0, 4) });
      expect(tokens).toEqual(all.slice(4));
      expect(of.text(tokens)).toBeNull();
    }
    expect((await sample({ path: folder, prompt: all.slice(0, 4), adapter: 'software' })).tokens).toEqual(all.slice(4));
    await expect(sample({ path: folder, adapter: 'no such' })).rejects.toThrow(/no such/);
  });
});

describe('a checkpoint of a run', () => {
  const text = 'to be or not to be\nthat is the question\n';

  /** A full checkpoint of a fresh model, trained on words (or on batches). */
  async function checkpointOf(data: { kind: string; path: string }, change: object = {}): Promise<string> {
    const model = { kind: 'gpt2', nLayer: 1, nHead: 2, nEmbd: 8, nPositions: 64, dropout: 0.5, ...change };
    const config = parseConfig({ model, data });
    const { parameters } = buildModel(config.model, 9);
    const path = join(folder, `${data.kind}.ckpt`);
    const sink = await createFileSink(path);
    const description = { parameters, optimizer: null, iter: 1, config: JSON.parse(JSON.stringify(config)) };
    const content = checkpointContent(description, async function* (name) {
      const spec = parameters.find((p) => p.name === name)!;
      yield new Uint8Array(initialValues(spec, 7, 0, elementsOf(spec.shape)).buffer);
    });
    await writeTorchFile(contentTree(content), sink);
    await sink.commit();
    return path;
  }

  const words = async () => {
    const path = join(folder, 'text.txt');
    await writeFile(path, text);
    return { kind: 'wikitext2', path, blockSize: 4 };
  };

  it('takes a prompt in the words of its corpus and answers in them, the same each time', async () => {
    const path = await checkpointOf(await words());
    const { tokens, of } = await sample({ path, prompt: 'to be\nthat', settings: { count: 5 } });
    expect(of.prompt).toEqual([0, 1, 4, 5]);
    expect(of.text(of.prompt)).toBe('to be\nthat');
    expect(tokens).toHaveLength(5);
    expect(tokens.every((token) => token < 9)).toBe(true);
    expect((await sample({ path, prompt: [0, 1, 4, 5], settings: { count: 5 } })).tokens).toEqual(tokens);
    await expect(sample({ path, prompt: 'to sleep' })).rejects.toThrow('the model knows no "sleep"');
  });

  it('takes ids alone where the words are not known, or not any more', async () => {
    const path = await checkpointOf(await words());
    await rm(join(folder, 'text.txt'));
    expect((await sample({ path })).tokens).toHaveLength(10);
    await expect(sample({ path, prompt: 'to be' })).rejects.toThrow(/text.txt/);
    const batches = await checkpointOf({ kind: 'batches', path: 'b.json' });
    expect((await sample({ path: batches })).of.text([1])).toBeNull();
    await expect(sample({ path: batches, prompt: 'to be' })).rejects.toThrow(/give token ids/);
  });

  it('does not continue from a model that cannot', async () => {
    const model = { kind: 'demo-transformer', ninp: 32, nhead: 4, nhid: 64, nlayers: 2 };
    const config = parseConfig({ model, data: { kind: 'batches', path: 'b.json' } });
    const path = testdata('demo-transformer/init.safetensors');
    await expect(sample({ path, config })).rejects.toThrow(/cannot continue a text/);
  });
});

describe('refused, with what to do', () => {
  it('weights of which nobody says what model they are', async () => {
    const path = join(folder, 'weights.safetensors');
    await cp(testdata('gpt2/hf/model.safetensors'), path);
    await expect(sample({ path })).rejects.toThrow(/no config.json is beside it; give the config of its run/);
    const model = { kind: 'gpt2', nLayer: 2, nHead: 4, nEmbd: 32, nPositions: 24 };
    const config = parseConfig({ model, data: { kind: 'batches', path: 'b.json' } });
    expect((await sample({ path, config })).tokens).toHaveLength(10);
  });

  it('weights that do not fit the model, by name', async () => {
    await cp(testdata('gpt2/hf/model.safetensors'), join(folder, 'model.safetensors'));
    const json = JSON.parse(readFileSync(testdata('gpt2/hf/config.json'), 'utf8'));
    await writeFile(join(folder, 'config.json'), JSON.stringify({ ...json, n_layer: 3, n_positions: 30 }));
    await expect(sample({ path: folder })).rejects.toThrow(
      /transformer.wpe.weight is \[24,32\] and should be \[30,32\]; transformer.h.2.ln_1.weight is missing/,
    );
    await writeFile(join(folder, 'config.json'), '{');
    await expect(sample({ path: folder })).rejects.toThrow(/config.json is not JSON/);
  });

  it('nothing there', async () => {
    await expect(sample({ path: join(folder, 'gone.ckpt') })).rejects.toThrow(/gone.ckpt is not there/);
  });
});
