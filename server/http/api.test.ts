import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  Comparison,
  CorpusInfo,
  DeviceList,
  ErrorBody,
  EventPage,
  MemorySummary,
  QuickStart,
  Run,
  RunList,
  UploadedFile,
} from '../contract.ts';
import { openTestStudio, type TestStudio } from '../fixtures/test-studio.ts';

let test: TestStudio;

beforeAll(async () => {
  test = await openTestStudio();
});
afterAll(() => test.close());

describe('the interface', () => {
  it('takes a run from its config to its checkpoint', async () => {
    const created = await test.api.create({ name: 'ok', devices: 2, trainer: { steps: 5 } });
    expect(Run.parse(created)).toMatchObject({ state: 'queued', steps: 5, strategy: 'FULL_SHARD', lastSeq: 0 });
    const run = Run.parse(await test.api.until(created.id, 'finished', 'failed'));
    expect(run).toMatchObject({
      state: 'finished',
      stepsDone: 5,
      lossMean: 4.6,
      iterationMs: 13.5, // of steps 1 to 4, the slower rank: 12, 13, 14, 15
      peakBytes: 2001,
      params: 1234,
      error: null,
      adapters: [{ name: 'swiftshader' }, { name: 'swiftshader' }],
      checkpoints: [{ name: 'step-000005.ckpt', path: `runs/${run.id}/checkpoints/step-000005.ckpt`, bytes: 10 }],
    });
    const page = EventPage.parse((await test.api.get(`/runs/${run.id}/events`)).body);
    expect(page.events.map(({ seq }) => seq)).toEqual(Array.from({ length: page.lastSeq }, (_, i) => i + 1));
    expect(page.lastSeq).toBe(run.lastSeq);
    expect(page.events[0].event).toBe('start');
    expect(page.events.at(-1)).toMatchObject({
      event: 'end',
      status: 'finished',
      checkpoints: [{ path: run.checkpoints[0].path }],
    });
    const steps = page.events.filter((event) => event.event === 'step');
    expect(steps).toHaveLength(10);
    expect(steps.find(({ step }) => step === 3)).toMatchObject({ loss: 'NaN' });
    expect(steps.find(({ step }) => step === 2)).toMatchObject({ gradNorm: 'Infinity' });
    const summary = MemorySummary.parse((await test.api.get(`/runs/${run.id}/memory-summary`)).body);
    expect(summary.summaries.map(({ rank }) => rank)).toEqual([0, 1]);
    const csv = String((await test.api.get(`/runs/${run.id}/steps.csv`)).body)
      .trim()
      .split('\r\n');
    expect(csv).toHaveLength(11);
    expect(csv[0]).toMatch(/^run,rank,step,loss,lossMean,gradNorm,iterationMs/);
    expect(JSON.parse(await readFile(join(test.dataFolder, 'runs', run.id, 'run.json'), 'utf8'))).toMatchObject({
      id: run.id,
    });
  });

  it('says in each line of the table that the link of a run is simulated', async () => {
    const strategy = { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2], linkGBps: 2 };
    const { id } = await test.api.create({ name: 'ok', devices: 4, strategy, trainer: { steps: 2 } });
    await test.api.until(id, 'finished');
    const [head, ...lines] = String((await test.api.get(`/runs/${id}/steps.csv`)).body)
      .trim()
      .split('\r\n')
      .map((line) => line.split(','));
    expect(head.at(-1)).toBe('simulatedLinkGBps');
    expect(new Set(lines.map((line) => line.at(-1)))).toEqual(new Set(['2']));
  });

  it('gives pages of events that fit together', async () => {
    const { id } = await test.api.create({ name: 'ok', trainer: { steps: 5 } });
    const { lastSeq } = await test.api.until(id, 'finished');
    const seqs: number[] = [];
    while (seqs.length < lastSeq) {
      const page = EventPage.parse((await test.api.get(`/runs/${id}/events?after=${seqs.length}&limit=3`)).body);
      expect(page.events.length).toBeGreaterThan(0);
      seqs.push(...page.events.map(({ seq }) => seq));
    }
    expect(seqs).toEqual(Array.from({ length: lastSeq }, (_, i) => i + 1));
    expect((await test.api.get(`/runs/${id}/events?after=${lastSeq}`)).body).toEqual({ events: [], lastSeq });
  });

  it('queues the quick-start, one adapter after the other, and compares it', async () => {
    const { status, body } = await test.api.post('/quick-start');
    expect(status).toBe(201);
    const { runs, group } = QuickStart.parse(body);
    expect(runs.map(({ strategy, devices }) => [strategy, devices])).toEqual([
      ['DDP', 2],
      ['FULL_SHARD', 2],
    ]);
    expect(runs.every((run) => run.group === group)).toBe(true);
    const [first, second] = await Promise.all(runs.map(({ id }) => test.api.until(id, 'finished')));
    expect(Date.parse(second.startedAt as string)).toBeGreaterThanOrEqual(Date.parse(first.endedAt as string));
    const { id } = second;
    const comparison = Comparison.parse((await test.api.get(`/compare?ids=${first.id},${id}`)).body);
    expect(comparison.runs.map(({ run }) => run.id)).toEqual([first.id, id]);
    expect(comparison.runs[0]).toMatchObject({
      peakBytes: 2001,
      liveBytes: 280,
      byCategory: { staging: 70 },
      lossStride: 1,
    });
    expect(comparison.runs[0].lossMeans).toEqual(Array.from({ length: first.steps }, (_, i) => 5 - i / 10));
    const last = first.steps - 1;
    expect(comparison.timedSteps).toEqual({ first: 1, last, count: last });
    expect(comparison.differing).toContain('strategy.kind');
    expect(comparison.differing).not.toContain('name');
    expect(comparison.differing.every((path) => path.startsWith('strategy.'))).toBe(true);
    const list = RunList.parse((await test.api.get('/runs?limit=2')).body);
    expect(list.runs.map((run) => run.id)).toEqual([id, first.id]);
    expect(list.total).toBeGreaterThan(2);
  });

  it('says why a run waits, stops it there, and stops one that trains', async () => {
    const first = await test.api.create({ name: 'slow first', trainer: { steps: 1000 } });
    const second = await test.api.create({ name: 'ok', trainer: { steps: 1 } });
    const interpreter = await test.api.create({ name: 'ok', adapter: 'interpreter', trainer: { steps: 1 } });
    await test.api.until(interpreter.id, 'finished'); // another slot
    await test.api.until(first.id, 'running');
    for (let n = 0; n < 100; n++) {
      const { reason } = (await test.api.get(`/runs/${second.id}`)).body as Run;
      if (reason === 'Waits for SwiftShader Device, used by run "slow first".') break;
      expect(n).toBeLessThan(99);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    expect((await test.api.ask('DELETE', `/runs/${second.id}`)).status).toBe(409);
    expect(DeviceList.parse((await test.api.get('/devices')).body).adapters[0].busy).toBe(first.id);
    expect((await test.api.post(`/runs/${second.id}/stop`)).body).toMatchObject({ state: 'stopped' });
    expect((await test.api.ask('DELETE', `/runs/${first.id}`)).status).toBe(409);
    expect((await test.api.post(`/runs/${first.id}/stop`)).status).toBe(202);
    const stopped = await test.api.until(first.id, 'stopped');
    expect(stopped).toMatchObject({ reason: 'Stopped by request.', error: null });
    expect(stopped.checkpoints).toHaveLength(1);
    expect((await test.api.post(`/runs/${first.id}/stop`)).status).toBe(409);
    const events = EventPage.parse((await test.api.get(`/runs/${second.id}/events`)).body).events;
    expect(events).toMatchObject([{ seq: 1, event: 'end', status: 'stopped' }]);
  });

  it('stops one that is still starting at once, and says when', async () => {
    const { id } = await test.api.create({ name: 'mute', trainer: { steps: 1 } });
    await test.api.until(id, 'starting');
    expect((await test.api.post(`/runs/${id}/stop`)).status).toBe(202);
    const { reason, error, checkpoints } = await test.api.until(id, 'stopped', 'failed');
    expect([reason, error, checkpoints]).toEqual(['Stopped by request before its first step.', null, []]);
  });

  it('says in our words what a body lacks or has too much', async () => {
    for (const [body, said] of [
      [{}, 'config: is missing.'],
      [{ config: {}, x: 1 }, 'The body: has a key "x", which this address does not take.'],
      [{ config: {}, group: 7 }, 'group: needs text, not 7.'],
      [[], 'The body: needs keys and values, not [].'],
    ])
      expect((await test.api.post('/runs', body)).body).toEqual({ error: { code: 'bad-request', message: said } });
  });

  it('deletes a run with its files', async () => {
    const { id } = await test.api.create({ name: 'ok', trainer: { steps: 1 } });
    await test.api.until(id, 'finished');
    expect((await test.api.ask('DELETE', `/runs/${id}`)).status).toBe(204);
    expect((await test.api.get(`/runs/${id}`)).status).toBe(404);
    expect((await test.api.get(`/runs/${id}/events`)).status).toBe(404);
    expect((await readdir(join(test.dataFolder, 'runs'))).filter((name) => name.includes(id))).toEqual([]);
    expect((await test.api.ask('DELETE', `/runs/${id}`)).status).toBe(404);
  });

  it('fails a run whose rank dies, and goes on with the next', async () => {
    const dying = await test.api.create({ name: 'crash-1', trainer: { steps: 100 } });
    const next = await test.api.create({ name: 'ok', trainer: { steps: 1 } });
    const failed = await test.api.until(dying.id, 'failed');
    expect(failed.error).toMatchObject({ code: 'worker-died', rank: 1 });
    expect(failed.reason).toMatch(/^Worker of rank 1 died with signal SIGKILL/);
    expect(failed.reason).not.toContain('\n');
    await test.api.until(next.id, 'finished');
  });

  it('fails a run whose adapter is not there, and says what there is', async () => {
    const { id } = await test.api.create({ name: 'ok', adapter: 'voodoo2' });
    expect((await test.api.until(id, 'failed')).reason).toMatch(/voodoo2.*SwiftShader Device/);
  });

  it('says what is wrong with a config, all at once and each in its place', async () => {
    const config = { model: { kind: 'demo-transformer', nhead: 3, colour: 'red' }, devices: 9, lr: 1 };
    const { status, body } = await test.api.post('/runs', { config });
    expect(status).toBe(400);
    const { error } = ErrorBody.parse(body);
    expect(error.code).toBe('invalid-config');
    expect(error.problems?.map(({ path }) => path).sort()).toEqual(['devices', 'lr', 'model.colour']);
  });
});

describe('a download', () => {
  let path: string;
  const content = Buffer.from('PK weights');

  beforeAll(async () => {
    const { id } = await test.api.create({ name: 'ok weights', trainer: { steps: 1 } });
    await test.api.until(id, 'finished');
    path = `${test.studio.address}/api/v1/runs/${id}/checkpoints/step-000001.ckpt`;
  });

  it('comes whole, with its size, its hash and its name', async () => {
    const answer = await fetch(path);
    expect(answer.status).toBe(200);
    expect(answer.headers.get('content-length')).toBe('10');
    expect(answer.headers.get('accept-ranges')).toBe('bytes');
    expect(answer.headers.get('etag')).toMatch(/^"[0-9a-f]{64}"$/);
    expect(answer.headers.get('content-disposition')).toContain('filename="ok-weights-step-000001.ckpt"');
    expect(Buffer.from(await answer.arrayBuffer())).toEqual(content);
    const head = await fetch(path, { method: 'HEAD' });
    expect([head.status, head.headers.get('content-length'), await head.text()]).toEqual([200, '10', '']);
  });

  it('is resumed by range while the file is the same', async () => {
    const etag = (await fetch(path)).headers.get('etag') as string;
    const part = await fetch(path, { headers: { range: 'bytes=4-', 'if-range': etag } });
    expect([part.status, part.headers.get('content-range'), part.headers.get('content-length')]).toEqual([
      206,
      'bytes 4-9/10',
      '6',
    ]);
    expect(await part.text()).toBe('eights');
    const changed = await fetch(path, { headers: { range: 'bytes=4-', 'if-range': '"other"' } });
    expect([changed.status, await changed.text()]).toEqual([200, 'PK weights']);
    const behind = await fetch(path, { headers: { range: 'bytes=10-' } });
    expect([behind.status, behind.headers.get('content-range')]).toEqual([416, 'bytes */10']);
    expect((await fetch(path, { headers: { 'if-none-match': etag } })).status).toBe(304);
  });

  it('that is broken off harms nobody', async () => {
    const { id } = await test.api.create({ name: 'ok', trainer: { steps: 1 } });
    await test.api.until(id, 'finished');
    await writeFile(join(test.dataFolder, 'runs', id, 'checkpoints/step-000001.ckpt'), Buffer.alloc(20_000_000));
    for (let n = 0; n < 10; n++) {
      const socket = connect(test.studio.port, '127.0.0.1');
      socket.write(
        `GET /api/v1/runs/${id}/checkpoints/step-000001.ckpt HTTP/1.1\r\nHost: 127.0.0.1:${test.studio.port}\r\n\r\n`,
      );
      await new Promise((resolve) => socket.once('data', resolve));
      socket.destroy();
    }
    await new Promise((resolve) => setTimeout(resolve, 200));
    const open = await readdir('/proc/self/fd');
    const { readlink } = await import('node:fs/promises');
    const names = await Promise.all(open.map((fd) => readlink(`/proc/self/fd/${fd}`).catch(() => '')));
    expect(names.filter((name) => name.includes(id))).toEqual([]);
  });
});

describe('a file', () => {
  const upload = (query: string, body: string) =>
    fetch(`${test.studio.address}/api/v1/files?${query}`, {
      method: 'POST',
      body,
      headers: { 'content-type': 'application/octet-stream' },
    });

  it('lies in uploads/ afterwards, with its hash', async () => {
    const text = 'the whale '.repeat(1000);
    const answer = await upload('kind=text&name=My%20whale%20(1).txt', text);
    expect(answer.status).toBe(201);
    const file = UploadedFile.parse(await answer.json());
    expect(file).toEqual({
      path: 'uploads/My-whale-1-.txt',
      bytes: 10_000,
      sha256: createHash('sha256').update(text).digest('hex'),
    });
    expect(await readFile(join(test.dataFolder, file.path), 'utf8')).toBe(text);
    const info = CorpusInfo.parse(
      (await test.api.get(`/corpora?kind=wikitext2&path=${encodeURIComponent(file.path)}&blockSize=10`)).body,
    );
    expect(info.path).toBe(file.path);
    expect(info.tokens).toBeGreaterThan(1999);
    const query = `kind=wikitext2&path=${encodeURIComponent(file.path)}&blockSize=10`;
    const gpt2 = CorpusInfo.parse((await test.api.get(`/corpora?${query}&tokenizer=gpt2`)).body);
    expect(gpt2).toMatchObject({ path: file.path, vocabSize: 50_257 });
    expect((await test.api.get(`/corpora?${query}&tokenizer=bytes`)).status).toBe(400);
    expect((await test.api.get('/files')).body).toMatchObject({ files: [{ path: file.path, bytes: 10_000 }] });
  });

  it('never replaces another', async () => {
    const path = async (content: string) =>
      UploadedFile.parse(await (await upload('kind=batches&name=b.json', content)).json()).path;
    expect(await path('[1]')).toBe('uploads/b.json');
    expect(await path('[1]')).toBe('uploads/b.json');
    const other = await path('[2]');
    expect(other).toMatch(/^uploads\/b-[0-9a-f]{8}\.json$/);
    expect(await path('[2]')).toBe(other);
    expect(await readFile(join(test.dataFolder, 'uploads/b.json'), 'utf8')).toBe('[1]');
  });

  it('that is empty or too large is refused and leaves nothing', async () => {
    expect((await upload('kind=text&name=e.txt', '')).status).toBe(400);
    const answer = await fetch(`${test.studio.address}/api/v1/files?kind=batches&name=big.json`, {
      method: 'POST',
      body: new Uint8Array(2 ** 28 + 1),
    }).catch(() => null); // the connection may be cut before all is sent
    expect(answer?.status ?? 413).toBe(413);
    expect(existsSync(join(test.dataFolder, 'uploads/big.json'))).toBe(false);
    expect((await readdir(join(test.dataFolder, 'uploads'))).filter((name) => name.startsWith('.'))).toEqual([]);
  });
});
