import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { cp, mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { convertCheckpointPath } from '../../engine/node/checkpoint-convert.ts';
import { verifyCheckpoint } from '../../engine/node/checkpoint-verify.ts';
import { inspectCheckpoint } from '../../engine/node/inspect-checkpoint.ts';
import {
  BroughtCheckpoint,
  BroughtCheckpointList,
  CheckpointDetails,
  ConvertLine,
  type Run,
  SampleLine,
  TensorDetails,
  VerifyLine,
} from '../contract.ts';
import { openTestStudio, type TestStudio } from '../fixtures/test-studio.ts';

let test: TestStudio;
let trained: Run;
let work: string;
let uploads: string;

const words = 'the whale saw the sea and the ship saw the moon over the sea and slept';

/** A studio with a run of two ranks that saved a folder, which was brought as a tar, as one file and as weights. */
beforeAll(async () => {
  work = await mkdtemp(join(tmpdir(), 'brought-'));
  const dataFolder = join(work, 'data');
  uploads = join(dataFolder, 'uploads');
  await mkdir(uploads, { recursive: true });
  await writeFile(join(uploads, 'words.txt'), Array.from({ length: 20 }, () => words).join('\n'));
  test = await openTestStudio({ dataFolder, workers: {} });
  const { id } = await test.api.create({
    name: 'small',
    adapter: 'interpreter',
    model: { kind: 'gpt2', nLayer: 1, nHead: 2, nEmbd: 8, nPositions: 16 },
    data: { kind: 'wikitext2', path: 'uploads/words.txt', blockSize: 8 },
    trainer: { steps: 2 },
  });
  trained = await test.api.until(id, 'finished', 'failed');
  for (const [name, as] of [
    ['mine.tar', ''],
    ['mine.ckpt', '?as=full'],
    ['mine.safetensors', '?as=safetensors'],
  ])
    expect((await bring(name, await bytesAt(`${ofRun()}${as}`))).status).toBe(201);
}, 120_000);
afterAll(async () => {
  await test?.close();
  await rm(work, { recursive: true, force: true });
});

const ofRun = (rest = '') => `/runs/${trained.id}/checkpoints/step-000002${rest}`;
const at = (address: string, init?: RequestInit) => fetch(`${test.studio.address}/api/v1${address}`, init);
const bytesAt = async (address: string) => Buffer.from(await (await at(address)).arrayBuffer());
const bring = async (name: string, body: Uint8Array) => {
  const headers = { 'content-type': 'application/octet-stream' };
  const answer = await at(`/files?kind=checkpoint&name=${name}`, {
    method: 'POST',
    body: new Uint8Array(body),
    headers,
  });
  return { status: answer.status, body: (await answer.json()) as { path?: string; error?: { message: string } } };
};
const list = async () => BroughtCheckpointList.parse((await test.api.get('/checkpoints')).body).checkpoints;
const post = (address: string, body: unknown = {}) =>
  at(address, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
const linesOf = async (answer: Response): Promise<unknown[]> =>
  (await answer.text())
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
const verify = async (address: string) =>
  (await linesOf(await post(`${address}/verify`))).map((line) => VerifyLine.parse(line));
const convert = async (address: string, body: unknown) =>
  (await linesOf(await post(`${address}/convert`, body))).map((line) => ConvertLine.parse(line));

describe('brought checkpoints', () => {
  it('are listed with what they hold, and are what the run saved', async () => {
    const found = new Map((await list()).map((one) => [one.name, one]));
    expect([...found.keys()].sort()).toEqual(['mine', 'mine.ckpt', 'mine.safetensors']);
    for (const [name, kind, optimizer] of [
      ['mine', 'sharded', true],
      ['mine.ckpt', 'full', true],
      ['mine.safetensors', 'safetensors', false],
    ] as const) {
      const one = found.get(name)!;
      expect(one).toMatchObject({ path: `uploads/${name}`, problem: null });
      expect(one.holds).toEqual({ kind, optimizer, step: 2, params: trained.params, tensors: expect.any(Number) });
      expect(Date.parse(one.verifiedAt!)).toBeGreaterThanOrEqual(Date.parse(one.broughtAt) - 1000);
      expect(await verifyCheckpoint(join(uploads, name))).toEqual({ kind, digests: true });
    }
  });

  it('answer as a run’s: details, a tensor, downloads of known length in every form', async () => {
    const [own, brought] = await Promise.all(
      [ofRun(), '/checkpoints/mine'].map(async (one) =>
        CheckpointDetails.parse((await test.api.get(`${one}/details`)).body),
      ),
    );
    expect({ ...brought, sha256: null }).toEqual({ ...own, sha256: null });
    expect(brought.step).toBe(2);
    const [tensor] = brought.tensors;
    const query = `/tensor?tensor=${encodeURIComponent(tensor.name)}`;
    const statistics = await Promise.all(
      [ofRun(query), `/checkpoints/mine.ckpt${query}`].map(async (one) =>
        TensorDetails.parse((await test.api.get(one)).body),
      ),
    );
    expect(statistics[1]).toEqual(statistics[0]);
    for (const name of ['mine', 'mine.ckpt', 'mine.safetensors'])
      for (const as of ['', '?as=full', '?as=safetensors']) {
        const answer = await at(`/checkpoints/${name}${as}`);
        const bytes = (await answer.arrayBuffer()).byteLength;
        expect([answer.status, Number(answer.headers.get('content-length'))], `${name}${as}`).toEqual([200, bytes]);
      }
    const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex');
    expect(sha256(await bytesAt('/checkpoints/mine.ckpt'))).toBe(sha256(await bytesAt(ofRun('?as=full'))));
  });

  it('are continued in their own words, unless these lie outside of the studio', async () => {
    const sample = async (name: string, body: object) => post(`/checkpoints/${name}/sample`, { count: 2, ...body });
    const lines = (await linesOf(await sample('mine', { prompt: 'the whale' }))).map((line) => SampleLine.parse(line));
    expect(lines.map(({ type }) => type)).toEqual(['prompt', 'token', 'token', 'end']);
    // The same checkpoint, whose config names a file of somebody else.
    const file = await readFile(join(uploads, 'mine.safetensors'));
    const path = JSON.stringify(join(uploads, 'words.txt')).slice(1, -1);
    const other = `/etc/${'/'.repeat(path.length - 11)}passwd`;
    const text = file.toString('latin1');
    expect(text).toContain(JSON.stringify(path).slice(1, -1));
    await bring('foreign.safetensors', Buffer.from(text.replaceAll(path, other), 'latin1'));
    const refused = await sample('foreign.safetensors', { prompt: 'the whale' });
    expect(await refused.json()).toMatchObject({ error: { message: expect.stringMatching(/give token ids/) } });
    expect((await sample('foreign.safetensors', { tokens: [1] })).status).toBe(200);
  });

  it('of Fabric say what they hold, and no config that they do not have', async () => {
    const file = new URL('../../engine/testdata/demo-transformer/fabric_single_step5.ckpt', import.meta.url);
    expect((await bring('fabric.ckpt', await readFile(file))).status).toBe(201);
    const details = CheckpointDetails.parse((await test.api.get('/checkpoints/fabric.ckpt/details')).body);
    expect(details).toMatchObject({ kind: 'full', step: 5, iter: 5, config: null });
    const refused = await post('/checkpoints/fabric.ckpt/sample', { tokens: [1] });
    expect(await refused.json()).toMatchObject({ error: { message: expect.stringMatching(/not say what model/) } });
  });

  it('are not found by a name that is none, and are no way out of the folder', async () => {
    for (const name of [
      'nope',
      '..',
      '.partial-0123',
      'mine.sha256',
      'words.txt',
      '..%2fwords.txt',
      'mine%2f.metadata',
      'mine%2f',
      'mine%2f.',
      'mine%2f..%2fmine.ckpt',
      'MINE',
    ])
      expect((await test.api.get(`/checkpoints/${name}/details`)).status, name).toBe(404);
    await symlink('/etc', join(uploads, 'way'));
    expect((await test.api.get('/checkpoints/way/details')).status).toBe(404);
    await rm(join(uploads, 'way'));
    const folder = join(uploads, 'mine');
    for (const [name, target] of [
      ['notes', '/etc/passwd'],
      ['model.safetensors', join(uploads, 'mine.safetensors')],
    ]) {
      await symlink(target, join(folder, name));
      const asked = [
        at('/checkpoints/mine'),
        at('/checkpoints/mine?as=full'),
        at('/checkpoints/mine/details'),
        at('/checkpoints/mine/tensor?tensor=x'),
        post('/checkpoints/mine/sample', { tokens: [1] }),
        post('/checkpoints/mine/verify'),
        post('/checkpoints/mine/convert', { kind: 'full' }),
      ];
      for (const answer of await Promise.all(asked)) {
        const { error } = (await answer.json()) as { error: { code: string; message: string } };
        expect([answer.status, error.code]).toEqual([400, 'bad-file']);
        expect(error.message).toMatch(new RegExp(`uploads/mine/${name} is a link`));
        expect(error.message).not.toContain(work);
      }
      await rm(join(folder, name));
    }
    expect((await test.api.get('/checkpoints/mine/details')).status).toBe(200);
  });

  it('that cannot be opened are listed with why', async () => {
    await writeFile(join(uploads, 'torn.ckpt'), 'PK\u0003\u0004');
    const torn = (await list()).find(({ name }) => name === 'torn.ckpt');
    expect(torn).toMatchObject({
      holds: null,
      verifiedAt: null,
      problem: expect.stringContaining('uploads/torn.ckpt'),
    });
    expect((await test.api.get('/checkpoints/torn.ckpt/details')).status).toBe(400);
    expect((await test.api.ask('DELETE', '/checkpoints/torn.ckpt')).status).toBe(204);
  });

  it('that somebody put there count as verified once they are brought', async () => {
    const file = await readFile(new URL('../../engine/testdata/zoo.pt', import.meta.url));
    await writeFile(join(uploads, 'zoo.pt'), file);
    const zoo = async () => (await list()).find(({ name }) => name === 'zoo.pt');
    expect(await zoo()).toMatchObject({ verifiedAt: null, holds: { kind: 'full' } });
    expect((await bring('zoo.pt', file)).body.path).toBe('uploads/zoo.pt');
    expect((await zoo())?.verifiedAt).toEqual(expect.any(String));
    const other = await readFile(new URL('../../engine/testdata/demo-transformer/init.pt', import.meta.url));
    expect((await bring('zoo.pt', other)).body.path).toMatch(/^uploads\/zoo-[0-9a-f]{8}\.pt$/);
  });

  it('are not deleted under a run that starts from them', async () => {
    const { id } = await test.api.create({
      ...(trained.config as object),
      init: { from: 'uploads/mine.ckpt' },
      trainer: { steps: 100_000 },
    });
    const refused = await test.api.ask('DELETE', '/checkpoints/mine.ckpt');
    expect([refused.status, JSON.stringify(refused.body)]).toEqual([
      409,
      expect.stringContaining('starts from mine.ckpt'),
    ]);
    await test.api.post(`/runs/${id}/stop`);
    await test.api.until(id, 'stopped');
    await bring('gone.ckpt', await bytesAt('/checkpoints/mine.ckpt'));
    expect((await test.api.ask('DELETE', '/checkpoints/gone.ckpt')).status).toBe(204);
    expect((await readdir(uploads)).filter((name) => name.startsWith('gone'))).toEqual([]);
    expect((await test.api.ask('DELETE', '/checkpoints/gone.ckpt')).status).toBe(404);
  }, 60_000);
});

describe('an archive that is brought', () => {
  /** A tar of the folder that was brought, once `spoil` was at its copy, with the list of digests that this returns. */
  async function archiveOf(spoil: (copy: string, list: string) => Promise<string | null>): Promise<Buffer> {
    const place = await mkdtemp(join(work, 'archive-'));
    await cp(join(uploads, 'mine'), join(place, 'mine'), { recursive: true });
    const list = await spoil(join(place, 'mine'), await readFile(join(uploads, 'mine.sha256'), 'utf8'));
    if (list !== null) await writeFile(join(place, 'mine.sha256'), list);
    const names = list === null ? ['mine'] : ['mine', 'mine.sha256'];
    await promisify(execFile)('tar', ['--format=ustar', '-cf', 'all.tar', ...names], { cwd: place });
    return readFile(join(place, 'all.tar'));
  }

  it.each([
    [
      'damaged, without a list of digests',
      /CRC-32/,
      async (copy: string) => {
        const shard = await readFile(join(copy, '__1_0.distcp'));
        const inTensor = shard.indexOf((await readFile(join(uploads, 'mine.safetensors'))).subarray(-16));
        expect(inTensor).toBeGreaterThan(0);
        shard[inTensor] ^= 1;
        await writeFile(join(copy, '__1_0.distcp'), shard);
        return null;
      },
    ],
    [
      'with a pickle that calls a program',
      /meta\.pt asks for posix\.system/,
      async (copy: string) => {
        await cp(fileURLToPath(new URL('../../engine/testdata/malicious.pt', import.meta.url)), join(copy, 'meta.pt'));
        return null;
      },
    ],
    [
      'with a list that lacks a file',
      /meta\.pt in the archive is not what its list of digests says/,
      async (_: string, list: string) => list.replace(/.*meta\.pt\n/, ''),
    ],
    [
      'without a file of its list',
      /lacks files that are on its list/,
      async (_: string, list: string) => `${list}${'ab'.repeat(32)}  mine/notes\n`,
    ],
  ])('%s is refused, and nothing of it stays', async (_, says, spoil) => {
    const before = (await readdir(uploads)).sort();
    const { status, body } = await bring('mine.tar', await archiveOf(spoil));
    expect([status, body.error?.message]).toEqual([400, expect.stringMatching(says)]);
    expect((await readdir(uploads)).sort()).toEqual(before);
  });

  it('otherwise it is taken', async () => {
    expect((await bring('mine.tar', await archiveOf(async (_, list) => list))).body.path).toBe('uploads/mine-2');
    expect((await test.api.ask('DELETE', '/checkpoints/mine-2')).status).toBe(204);
  });
});

describe.each([
  ['a run’s', () => ofRun()],
  ['a brought one', () => '/checkpoints/mine'],
])('%s', (_, address) => {
  it('is verified file by file, with how far that is', async () => {
    const lines = await verify(address());
    expect(lines[0]).toMatchObject({ type: 'progress', doneBytes: 0 });
    const files = lines.flatMap((line) => (line.type === 'file' ? [[line.name, line.problem]] : []));
    expect(files.sort()).toEqual(['.metadata', '__0_0.distcp', '__1_0.distcp', 'meta.pt'].map((name) => [name, null]));
    expect(lines.at(-1)).toEqual({ type: 'verified', kind: 'sharded', digests: true });
  });

  it('is verified to be damaged by the file that is', async () => {
    const path = join(test.dataFolder, address().startsWith('/runs') ? trained.checkpoints[0].path : 'uploads/mine');
    const shard = join(path, '__1_0.distcp');
    const whole = await readFile(shard);
    await writeFile(shard, whole.subarray(0, -1));
    const lines = await verify(address());
    await writeFile(shard, whole);
    const bad = lines.flatMap((line) => (line.type === 'file' && line.problem ? [[line.name, line.problem.code]] : []));
    expect(bad).toEqual([['__1_0.distcp', 'bad-file']]);
    expect(lines.at(-1)).toMatchObject({ type: 'failed', error: { code: 'bad-file' } });
    expect(JSON.stringify(lines)).not.toContain(work);
  });

  it('is converted to every form as the command line does it, and a folder back', async () => {
    for (const [kind, ranks] of [
      ['full', null],
      ['safetensors', null],
      ['sharded', 3],
    ] as const) {
      const last = (await convert(address(), { kind, ranks, name: `made of ${kind}.ckpt` })).at(-1)!;
      if (last.type !== 'converted') throw new Error(JSON.stringify(last));
      const { checkpoint, dropped } = last;
      const made = join(uploads, checkpoint.name);
      expect(checkpoint.name).toMatch(new RegExp(`^made-of-${kind}`));
      expect(await verifyCheckpoint(made)).toEqual({ kind, digests: true });
      expect(dropped).toEqual(kind === 'safetensors' ? ['optimizer'] : []);
      const cli = join(work, `${checkpoint.name}-cli`);
      const from = join(test.dataFolder, address().startsWith('/runs') ? trained.checkpoints[0].path : 'uploads/mine');
      await convertCheckpointPath({ from, to: cli, kind, ranks: ranks ?? undefined });
      // A folder has an id of its own save.
      if (kind !== 'sharded') expect((await readFile(made)).equals(await readFile(cli))).toBe(true);
      else expect((await inspectCheckpoint(made)).tensors).toEqual((await inspectCheckpoint(cli)).tensors);
    }
    const back = (await convert('/checkpoints/made-of-sharded', { kind: 'full' })).at(-1)!;
    expect(back).toMatchObject({ type: 'converted', checkpoint: { holds: { kind: 'full', optimizer: true } } });
    expect((await readdir(uploads)).filter((name) => name.includes('partial') || name.includes('part-'))).toEqual([]);
  }, 60_000);

  it('is not converted to what there is not', async () => {
    for (const body of [{}, { kind: 'zip' }, { kind: 'full', ranks: 2 }, { kind: 'sharded', ranks: 0 }])
      expect((await post(`${address()}/convert`, body)).status, JSON.stringify(body)).toBe(400);
  });
});

it('a conversion ends with its reader, and leaves nothing', async () => {
  const before = (await readdir(uploads)).sort();
  const leaving = new AbortController();
  const asked = at('/checkpoints/mine/convert', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ kind: 'full', name: 'never' }),
    signal: leaving.signal,
  });
  const left = expect(asked).rejects.toThrow(/abort/);
  const drafts = async () => (await readdir(uploads)).filter((name) => name.startsWith('.partial-'));
  await expect.poll(drafts, { interval: 5, timeout: 20_000 }).toHaveLength(1);
  leaving.abort();
  await left;
  await expect.poll(drafts, { timeout: 20_000 }).toEqual([]);
  expect((await readdir(uploads)).sort()).toEqual(before);
});

it('every brought checkpoint is as the contract has it', async () => {
  for (const one of await list()) BroughtCheckpoint.parse(one);
});
