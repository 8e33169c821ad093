import { execFileSync } from 'node:child_process';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import { sampleCheckpoint } from '../../engine/node/sample-checkpoint.ts';
import { type Run, SampleLine } from '../contract.ts';
import { openTestStudio, rawRequest, type TestStudio } from '../fixtures/test-studio.ts';
import { withAbsolutePaths } from '../runs/config-paths.ts';
import { sampledPieces } from '../sampling/sampled-pieces.ts';

let test: TestStudio;
let work: string;
const runs: Record<'gpt2' | 'llama' | 'demo', Run> = {} as never;

const models = {
  gpt2: { kind: 'gpt2', nLayer: 1, nHead: 2, nEmbd: 8, nPositions: 16 },
  llama: {
    kind: 'llama',
    hiddenSize: 8,
    intermediateSize: 16,
    numHiddenLayers: 1,
    numAttentionHeads: 2,
    numKeyValueHeads: 2,
  },
  demo: { kind: 'demo-transformer', ninp: 8, nhead: 2, nhid: 8, nlayers: 1 },
};
const words = 'the whale saw the sea and the ship saw the moon over the sea and slept';

/** One run of each model, trained by the engine's own worker on a text of few words. */
beforeAll(async () => {
  work = await mkdtemp(join(tmpdir(), 'sample-'));
  const dataFolder = join(work, 'data');
  await mkdir(join(dataFolder, 'uploads'), { recursive: true });
  await writeFile(join(dataFolder, 'uploads', 'words.txt'), Array.from({ length: 20 }, () => words).join('\n'));
  test = await openTestStudio({ dataFolder, workers: {} });
  for (const [kind, model] of Object.entries(models)) {
    const { id } = await test.api.create({
      name: kind,
      model,
      adapter: 'interpreter',
      devices: 1,
      strategy: 'ddp',
      data: { kind: 'wikitext2', path: 'uploads/words.txt', blockSize: 8 },
      trainer: { steps: 1 },
      checkpoint: { format: kind === 'llama' ? 'safetensors' : 'full' },
    });
    runs[kind as keyof typeof runs] = await test.api.until(id, 'finished', 'failed');
  }
}, 120_000);
afterAll(async () => {
  await test?.close();
  await rm(work, { recursive: true, force: true });
});

const route = ({ id, checkpoints }: Run) => `/runs/${id}/checkpoints/${checkpoints[0].name}/sample`;
const ask = (run: Run, body: unknown, signal?: AbortSignal) =>
  fetch(`${test.studio.address}/api/v1${route(run)}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal,
  });
const linesOf = (text: string) =>
  text
    .trim()
    .split('\n')
    .map((line) => SampleLine.parse(JSON.parse(line)));

it.each(['gpt2', 'llama'] as const)(
  'continues a text from a checkpoint of %s as the command line does',
  async (kind) => {
    const run = runs[kind];
    expect(run.error).toBeNull();
    const settings = { count: 6, temperature: 0.8, topK: 5, seed: 3 };
    const response = await ask(run, { prompt: 'the whale', ...settings });
    expect([response.status, response.headers.get('content-type')]).toEqual([
      200,
      'application/x-ndjson; charset=utf-8',
    ]);
    const lines = linesOf(await response.text());
    expect(lines.map(({ type }) => type)).toEqual(['prompt', ...Array.from({ length: 6 }, () => 'token'), 'end']);
    const sampling = await sampleCheckpoint({
      path: join(test.dataFolder, run.checkpoints[0].path),
      prompt: 'the whale',
      settings,
      config: withAbsolutePaths(parseConfig(run.config), (path) => join(test.dataFolder, path)),
      corpusFolder: join(test.dataFolder, 'corpora'),
    });
    const expected: string[] = [];
    for await (const { text } of sampledPieces(sampling)) expected.push(text);
    expect(lines.map(({ text }) => text)).toEqual(expected);
    expect(expected[0]).toBe('the whale');
  },
);

it('continues token ids too', async () => {
  const lines = linesOf(await (await ask(runs.gpt2, { tokens: [0, 1], count: 2 })).text());
  expect(lines[0]).toMatchObject({ type: 'prompt', tokens: [0, 1] });
  expect(lines).toHaveLength(4);
});

it('refuses in words what cannot be continued', async () => {
  const refused: [Run, unknown, number, RegExp][] = [
    [runs.demo, { prompt: 'the' }, 400, /reads the targets .* use gpt2 or llama/],
    [runs.gpt2, { prompt: 'the kraken' }, 400, /the model knows no "kraken"/],
    [runs.gpt2, { tokens: [999], count: 2 }, 400, /has token 999; the model's are 0 to/],
    [runs.gpt2, { prompt: 'the', count: 40 }, 400, /need 40 positions, the model has 16/],
    [runs.gpt2, { prompt: '', count: 2 }, 400, /the prompt is empty/],
    [runs.gpt2, {}, 400, /Give either a prompt or tokens/],
    [runs.gpt2, { prompt: 'the', count: 0 }, 400, /count: has to be at least 1, not 0/],
  ];
  for (const [run, body, status, message] of refused) {
    const answer = await ask(run, body);
    const { error } = (await answer.json()) as { error: { message: string } };
    expect([answer.status, error.message], JSON.stringify(body)).toEqual([status, expect.stringMatching(message)]);
    expect(error.message).not.toContain(work);
  }
  expect((await test.api.post(`/runs/${runs.gpt2.id}/checkpoints/step-9.ckpt/sample`, { prompt: 'the' })).status).toBe(
    404,
  );
});

it('says at the end what went wrong after the beginning', async () => {
  const lines = linesOf(await (await ask(runs.gpt2, { prompt: 'the', count: 2, adapter: 'no such' })).text());
  expect(lines).toMatchObject([{ type: 'prompt' }, { type: 'end', error: { code: 'no-adapter' } }]);
});

it('is not for other sites or names', async () => {
  const { port } = test.studio;
  const headers = { 'content-type': 'application/json' };
  const request = { method: 'POST', path: `/api/v1${route(runs.gpt2)}`, body: '{"prompt":"the","count":1}' };
  const foreigners: Record<string, string>[] = [
    { origin: 'http://evil.example' },
    { host: `evil.example:${port}` },
    { origin: 'null' },
  ];
  for (const foreign of foreigners)
    expect((await rawRequest(port, { ...request, headers: { ...headers, ...foreign } })).status).toBe(403);
  const form = { ...request, headers: { 'content-type': 'text/plain' } };
  expect((await rawRequest(port, form)).status).toBe(415);
});

/** The processes that sample now, of this one. */
const samplers = () =>
  execFileSync('ps', ['--ppid', String(process.pid), '-o', 'args'], { encoding: 'utf8' })
    .split('\n')
    .filter((line) => line.includes(fileURLToPath(new URL('../sampling/sample-worker.ts', import.meta.url))));

it('ends with its reader, and only so many go on at once', async () => {
  const leaving = new AbortController();
  const body = { prompt: 'the whale', count: 8 };
  const [one, two] = [ask(runs.gpt2, body, leaving.signal), ask(runs.llama, { ...body, count: 1000 }, leaving.signal)];
  for (const answer of [one, two]) answer.catch(() => undefined);
  await expect.poll(samplers, { timeout: 20_000 }).toHaveLength(2);
  const third = await ask(runs.gpt2, body);
  expect(third.status).toBe(409);
  await third.body?.cancel();
  leaving.abort();
  await expect.poll(samplers, { timeout: 20_000 }).toEqual([]);
  await expect.poll(async () => (await ask(runs.gpt2, { ...body, count: 1 })).status, { timeout: 30_000 }).toBe(200);
});
