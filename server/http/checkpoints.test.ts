import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { verifyCheckpoint } from '../../engine/node/checkpoint-verify.ts';
import { CheckpointDetails, type Run, TensorDetails, UploadedFile } from '../contract.ts';
import { openTestStudio, type TestStudio } from '../fixtures/test-studio.ts';

const run = promisify(execFile);
let test: TestStudio;
let trained: Run;
let work: string;

const model = { kind: 'demo-transformer', ninp: 8, nhead: 2, nhid: 12, nlayers: 1 };
const config = { name: 'small', adapter: 'interpreter', model, data: { kind: 'batches', path: 'uploads/b.json' } };

/** A studio with the engine's own workers, and a run of two ranks that has saved a folder. */
beforeAll(async () => {
  work = await mkdtemp(join(tmpdir(), 'checkpoints-'));
  const dataFolder = join(work, 'data');
  await mkdir(join(dataFolder, 'uploads'), { recursive: true });
  const batch = (n: number) => ({ input: [n, 2, 3, 9], target: [2, 3, n, 9] });
  await writeFile(
    join(dataFolder, 'uploads', 'b.json'),
    JSON.stringify(Array.from({ length: 400 }, (_, i) => [batch(i % 8), batch((i + 3) % 8)])),
  );
  test = await openTestStudio({ dataFolder, workers: {} });
  const { id } = await test.api.create({ ...config, trainer: { steps: 4 }, checkpoint: { every: 2, keepLast: 1 } });
  trained = await test.api.until(id, 'finished', 'failed');
}, 60_000);
afterAll(async () => {
  await test?.close();
  await rm(work, { recursive: true, force: true });
});

const address = (rest = '') => `${test.studio.address}/api/v1/runs/${trained.id}/checkpoints/step-000004${rest}`;
const bytesOf = async (response: Response) => Buffer.from(await response.arrayBuffer());
const upload = async (name: string, body: Uint8Array, kind = 'checkpoint') => {
  const response = await fetch(`${test.studio.address}/api/v1/files?kind=${kind}&name=${encodeURIComponent(name)}`, {
    method: 'POST',
    body: new Uint8Array(body),
    headers: { 'content-type': 'application/octet-stream' },
  });
  return { status: response.status, body: (await response.json()) as { error?: { message: string }; path?: string } };
};
const uploads = async () => (await readdir(join(test.dataFolder, 'uploads'))).sort();

describe('the checkpoints of a run', () => {
  it('are listed with form and size; those that keepLast deleted are not', async () => {
    expect(trained.error).toBeNull();
    expect(trained.checkpoints).toMatchObject([{ name: 'step-000004', format: 'sharded', step: 4 }]);
    const files = await readdir(join(test.dataFolder, 'runs', trained.id, 'checkpoints', 'step-000004'));
    expect(files.sort()).toEqual(['.metadata', '__0_0.distcp', '__1_0.distcp', 'meta.pt']);
    expect(trained.checkpoints[0].bytes).toBeGreaterThan(10_000);
  });

  it('a folder is one tar, of the size that was said, which tar unpacks to what verifies', async () => {
    const response = await fetch(address());
    const bytes = await bytesOf(response);
    expect(Number(response.headers.get('content-length'))).toBe(bytes.length);
    expect(response.headers.get('content-disposition')).toContain('small-step-000004.tar');
    await writeFile(join(work, 'a.tar'), bytes);
    await mkdir(join(work, 'unpacked'));
    await run('tar', ['-xf', join(work, 'a.tar'), '-C', join(work, 'unpacked')]);
    expect(await verifyCheckpoint(join(work, 'unpacked', 'step-000004'))).toEqual({ kind: 'sharded', digests: true });
    await run('sha256sum', ['-c', 'step-000004.sha256'], { cwd: join(work, 'unpacked') });
  });

  it('a folder with a link, or another file, or without one of its list is no tar', async () => {
    const folder = join(test.dataFolder, 'runs', trained.id, 'checkpoints', 'step-000004');
    const shard = join(folder, '__1_0.distcp');
    const refused = async (said: RegExp) => {
      const response = await fetch(address());
      expect(response.status).toBe(400);
      expect(await response.json()).toMatchObject({
        error: { code: 'bad-file', message: expect.stringMatching(said) },
      });
    };
    await writeFile(join(folder, 'notes'), 'of nobody');
    await refused(/"notes" is not on its list/);
    await rm(join(folder, 'notes'));
    await rename(shard, join(work, 'shard'));
    await refused(/__1_0.distcp is no plain file/);
    await symlink(join(work, 'shard'), shard);
    await refused(/__1_0.distcp is a link/);
    await rm(shard);
    await rename(join(work, 'shard'), shard);
    expect((await fetch(address())).status).toBe(200);
  });

  it('any part of it is the same part, so that a download goes on where it was cut', async () => {
    const whole = await bytesOf(await fetch(address()));
    for (const [start, end] of [
      [0, 0],
      [511, 513],
      [1000, whole.length - 1],
      [whole.length - 1500, whole.length - 1],
    ]) {
      const part = await fetch(address(), { headers: { range: `bytes=${start}-${end}` } });
      expect([part.status, (await bytesOf(part)).equals(whole.subarray(start, end + 1))]).toEqual([206, true]);
    }
    const beyond = await fetch(address(), { headers: { range: `bytes=${whole.length}-` } });
    expect(beyond.status).toBe(416);
  });

  it('one file in another form, of the size that was said', async () => {
    for (const [as, suffix] of [
      ['full', '.ckpt'],
      ['safetensors', '.safetensors'],
    ]) {
      const response = await fetch(address(`?as=${as}`));
      const bytes = await bytesOf(response);
      expect(response.headers.get('content-disposition')).toContain(`small-step-000004${suffix}`);
      expect(Number(response.headers.get('content-length'))).toBe(bytes.length);
      const path = join(work, `one${suffix}`);
      await writeFile(path, bytes);
      expect((await verifyCheckpoint(path)).kind).toBe(as);
    }
    expect((await fetch(address('?as=zip'))).status).toBe(400);
  });

  it('say what they hold, and what the elements of a tensor are like', async () => {
    const details = CheckpointDetails.parse(await (await fetch(address('/details'))).json());
    expect(details).toMatchObject({
      kind: 'sharded',
      iter: 4,
      step: 4,
      config: { name: 'small', data: { path: 'uploads/b.json' } },
    });
    expect(details.files.every(({ sha256 }) => sha256?.length === 64)).toBe(true);
    const [embedding] = details.tensors;
    expect(embedding.parts.map(({ rank }) => rank)).toEqual([0, 1]);
    const tensor = async (name: string) => fetch(address(`/tensor?tensor=${encodeURIComponent(name)}`));
    const statistics = TensorDetails.parse(await (await tensor(embedding.name)).json());
    expect(statistics.elements).toBe(embedding.elements);
    expect(statistics.histogram.reduce((a, b) => a + b, 0)).toBe(embedding.elements);
    expect((await tensor('nope')).status).toBe(404);
  });
});

describe('a run that trains', () => {
  it('saves when asked to, goes on, and another run of its name resumes from the latest', async () => {
    const { id } = await test.api.create({ ...config, name: 'asked', trainer: { steps: 400 } });
    await test.api.until(id, 'running');
    while (((await test.api.get(`/runs/${id}`)).body as Run).stepsDone < 2)
      await new Promise((resolve) => setTimeout(resolve, 10));
    expect((await test.api.post(`/runs/${id}/save`)).status).toBe(202);
    const listed = async () => ((await test.api.get(`/runs/${id}`)).body as Run).checkpoints;
    while ((await listed()).length === 0) await new Promise((resolve) => setTimeout(resolve, 10));
    const [{ step }] = await listed();
    expect(step).toBeLessThan(400);
    await test.api.post(`/runs/${id}/stop`);
    const stopped = await test.api.until(id, 'stopped', 'finished');
    expect((await test.api.post(`/runs/${id}/save`)).status).toBe(409);

    const last = stopped.checkpoints.at(-1)!.step;
    const next = { ...config, name: 'asked', trainer: { steps: last + 2 }, checkpoint: { resume: 'latest' } };
    const resumed = await test.api.until((await test.api.create(next)).id, 'finished', 'failed');
    expect(resumed.error).toBeNull();
    expect(resumed.checkpoints.map((c) => c.step)).toEqual([last + 2]);
  }, 60_000);

  it('resume: latest without any is refused at its field, unless a run of that name before it is not over', async () => {
    const latest = { ...config, name: 'alone', checkpoint: { resume: 'latest' } };
    const says = /^latest finds no whole checkpoint of an earlier run called alone\. Name one by its path, or leave/;
    expect(await test.api.post('/runs', { config: latest })).toMatchObject({
      status: 400,
      body: { error: { problems: [{ path: 'checkpoint.resume', message: expect.stringMatching(says) }] } },
    });
    const first = await test.api.create({ ...config, name: 'alone', trainer: { steps: 400 } });
    const next = await test.api.create(latest);
    for (const { id } of [next, first]) {
      await test.api.post(`/runs/${id}/stop`);
      await test.api.until(id, 'stopped');
    }
  });
});

describe('a checkpoint that is brought', () => {
  it('as an archive becomes a folder that a run resumes from; as a file too', async () => {
    const tar = await bytesOf(await fetch(address()));
    const brought = await upload('mine.tar', tar);
    expect(brought.status).toBe(201);
    expect(UploadedFile.parse(brought.body).path).toBe('uploads/mine');
    expect((await upload('mine.tar', tar)).body.path).toBe('uploads/mine-2');
    await verifyCheckpoint(join(test.dataFolder, 'uploads', 'mine'));
    const file = await bytesOf(await fetch(address('?as=full')));
    expect((await upload('mine.ckpt', file)).body.path).toBe('uploads/mine.ckpt');
    for (const resume of ['uploads/mine', 'uploads/mine.ckpt']) {
      const { id } = await test.api.create({
        ...config,
        strategy: 'ddp',
        trainer: { steps: 5 },
        checkpoint: { resume },
      });
      const resumed = await test.api.until(id, 'finished', 'failed');
      expect([resumed.error, resumed.checkpoints[0].step]).toEqual([null, 5]);
    }
  }, 60_000);

  it('is refused when it is damaged, hostile or no checkpoint, and nothing of it stays', async () => {
    const before = await uploads();
    const tar = await bytesOf(await fetch(address()));
    const bad = Buffer.from(tar);
    bad[tar.indexOf('PK', 30_000) + 400] ^= 1;
    const malicious = await readFile(new URL('../../engine/testdata/malicious.pt', import.meta.url));
    const refused: [string, Uint8Array, RegExp][] = [
      ['cut.tar', tar.subarray(0, 20_000), /cut short/],
      ['bad.tar', bad, /is not what its list of digests says/],
      ['empty.tar', Buffer.alloc(1024), /no checkpoint folder/],
      ['none.tar', Buffer.from('x'.repeat(2048)), /no tar archive/],
      ['evil.ckpt', malicious, /posix.system/],
      ['text.ckpt', Buffer.from('hello world'), /"text.ckpt".* no checkpoint/],
      ['my own (1).pt', Buffer.from('PK\u0003\u0004 hello'), /"my own \(1\).pt"/],
    ];
    for (const [name, body, why] of refused) {
      const answer = await upload(name, body);
      expect([name, answer.status >= 400, answer.body.error?.message]).toEqual([
        name,
        true,
        expect.stringMatching(why),
      ]);
      expect(answer.body.error?.message).not.toMatch(/partial-|uploads/);
    }
    expect(await uploads()).toEqual(before);
  });

  it.each([
    ['../out', '0'],
    ['/etc/passwd', '0'],
    ['a/b/c', '0'],
    ['a/..', '0'],
    ['a\\b', '0'],
    ['a/link', '2'],
    ['a/link', '1'],
    ['a/device', '3'],
    ['a/.hidden', '0'],
    ['loose', '0'],
  ])('an archive with the entry %s of type %s is refused', async (name, type) => {
    const before = await uploads();
    const { status, body } = await upload('odd.tar', entry(name, type));
    expect([status, body.error?.message]).toEqual([400, expect.stringContaining('The archive is refused')]);
    expect(await uploads()).toEqual(before);
  });

  it('an archive with a name twice, or alike but for its case, is refused', async () => {
    const body = Buffer.concat([entry('a/X', '0').subarray(0, 512), entry('a/x', '0')]);
    expect((await upload('twice.tar', body)).body.error?.message).toMatch(/is there twice/);
  });
});

/** An archive of one empty entry. */
function entry(name: string, type: string): Buffer {
  const header = Buffer.alloc(512);
  header.write(name, 0);
  header.write('0000644\0', 100);
  header.write('00000000000\0', 124);
  header.write(type, 156);
  header.write('ustar\x0000', 257);
  header.fill(' ', 148, 156);
  const sum = header.reduce((a, b) => a + b, 0);
  header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  return Buffer.concat([header, Buffer.alloc(1024)]);
}

it('equal folders make equal archives', async () => {
  const [a, b] = await Promise.all([fetch(address()), fetch(address())].map(async (r) => bytesOf(await r)));
  const digest = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
  expect(digest(a)).toBe(digest(b));
});
