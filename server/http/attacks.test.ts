import { mkdir, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openTestStudio, rawRequest, type TestStudio } from '../fixtures/test-studio.ts';

let test: TestStudio;
let runId: string;
let port: number;

beforeAll(async () => {
  test = await openTestStudio();
  port = test.studio.port;
  const run = await test.api.create({ name: '<script>alert(1)</script> =cmd "; touch x $(x)', trainer: { steps: 2 } });
  runId = run.id;
  await test.api.until(runId, 'finished');
  await writeFile(join(test.dataFolder, 'secret.txt'), 'the secret');
});
afterAll(() => test.close());

const send = (options: Parameters<typeof rawRequest>[1]) => rawRequest(port, options);

describe('a page of another site', () => {
  const foreign: Record<string, string>[] = [
    { origin: 'http://evil.example' },
    { origin: 'null' },
    { origin: `http://localhost.evil.example:1` },
    { host: 'evil.example' },
    { host: 'evil.example', origin: 'http://evil.example' },
    { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'cors' },
  ];

  it('is refused on every method and address, static files too', async () => {
    for (const headers of foreign)
      for (const method of ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'])
        for (const path of ['/', '/api/v1/runs', `/api/v1/runs/${runId}`, '/_next/static/x.js', '/logo.svg'])
          expect((await send({ method, path, headers })).status, `${method} ${path} ${JSON.stringify(headers)}`).toBe(
            403,
          );
    expect((await test.api.get(`/runs/${runId}`)).status).toBe(200);
  });

  it('gets no CORS header that would let it read', async () => {
    const { headers } = await send({ path: '/api/v1/runs', headers: { origin: `http://127.0.0.1:${port}` } });
    expect(Object.keys(headers).filter((name) => name.startsWith('access-control'))).toEqual([]);
  });

  it('cannot send a form or text as JSON', async () => {
    for (const type of ['text/plain', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=x', ''])
      expect(
        (await send({ method: 'POST', path: '/api/v1/runs', headers: { 'content-type': type }, body: '{"config":{}}' }))
          .status,
      ).toBe(415);
  });

  it('cannot change anything with a cookie alone', async () => {
    for (const [method, path] of [
      ['DELETE', `/api/v1/runs/${runId}`],
      ['POST', '/api/v1/quick-start'],
    ])
      expect((await send({ method, path, headers: { cookie: 'a=b' } })).status).toBe(403);
  });
});

describe('a path that leaves its folder', () => {
  const ways = [
    '..',
    '%2e%2e',
    '%252e%252e',
    '..%2f..%2f..%2fsecret.txt',
    '..%5c..%5csecret.txt',
    '%2fetc%2fpasswd',
    'C:%5cWindows',
    '..%00',
    'step-000002.ckpt%00.txt',
    'x'.repeat(5000),
    'step-000002.ckpt%2f..%2f..%2frun.json',
    '%ff',
  ];

  it('finds nothing in the address of a run or a checkpoint', async () => {
    for (const way of ways) {
      for (const path of [
        `/api/v1/runs/${way}`,
        `/api/v1/runs/${runId}/checkpoints/${way}`,
        `/api/v1/runs/${way}/checkpoints/step-000002.ckpt`,
      ]) {
        const answer = await send({ path });
        expect([400, 403, 404], path.slice(0, 100)).toContain(answer.status);
        expect(answer.body).not.toContain('the secret');
        const removed = await send({ method: 'DELETE', path });
        expect([400, 403, 404, 405], path.slice(0, 100)).toContain(removed.status);
      }
    }
    expect(await readdir(join(test.dataFolder, 'runs'))).toContain(runId);
  });

  it('is refused in a config, at its field', async () => {
    for (const path of [
      '../secret.txt',
      '/etc/passwd',
      'uploads/../../x',
      'uploads/a\\b',
      'uploads/\u0000',
      'uploads/none.txt',
    ]) {
      const { status, body } = await test.api.post('/runs', { config: { data: { kind: 'wikitext2', path } } });
      expect(status).toBe(400);
      const { error } = body as { error: { code: string; problems: { path: string }[] } };
      expect(error.code).toBe('invalid-config');
      expect(error.problems.map((problem) => problem.path)).toEqual(['data.path']);
    }
  });

  it('is refused when a link inside the data folder leads out', async () => {
    await symlink('/etc/hostname', join(test.dataFolder, 'uploads', 'link.txt'));
    const { status } = await test.api.get('/corpora?kind=wikitext2&path=uploads/link.txt');
    expect(status).toBe(403);
    const run = await test.api.create({ name: 'ok', trainer: { steps: 1 } });
    await test.api.until(run.id, 'finished');
    const folder = join(test.dataFolder, 'runs', run.id, 'checkpoints');
    await rm(join(folder, 'step-000001.ckpt'));
    await symlink(join(test.dataFolder, 'secret.txt'), join(folder, 'step-000001.ckpt'));
    const answer = await test.api.get(`/runs/${run.id}/checkpoints/step-000001.ckpt`);
    expect(answer.status).toBe(403);
    expect((await test.api.ask('DELETE', `/runs/${run.id}`)).status).toBe(204);
    expect(await readFile(join(test.dataFolder, 'secret.txt'), 'utf8')).toBe('the secret');
  });

  it('is refused as the name of an upload, which then leaves nothing', async () => {
    await mkdir(join(test.dataFolder, 'uploads'), { recursive: true });
    const before = await readdir(join(test.dataFolder, 'uploads'));
    for (const name of ['../x.txt', '/x.txt', 'a\\x.txt', '..', '.', '', 'x.exe', 'x', 'x.txt\0'])
      expect(
        (await send({ method: 'POST', path: `/api/v1/files?kind=text&name=${encodeURIComponent(name)}`, body: 'x' }))
          .status,
        name,
      ).toBe(400);
    expect((await send({ method: 'POST', path: '/api/v1/files?kind=__proto__&name=x.txt', body: 'x' })).status).toBe(
      400,
    );
    expect(await readdir(join(test.dataFolder, 'uploads'))).toEqual(before);
    const hidden = await send({ method: 'POST', path: '/api/v1/files?kind=text&name=.htaccess.txt', body: 'x' });
    expect(JSON.parse(hidden.body).path).toBe('uploads/htaccess.txt');
  });

  it('is never told: no answer has the place of the data folder', async () => {
    await writeFile(join(test.dataFolder, 'uploads', 'empty.txt'), '');
    const { body } = await test.api.get('/corpora?kind=wikitext2&path=uploads/empty.txt');
    expect(JSON.stringify(body)).toMatch(/uploads\/empty.txt is empty/);
    expect(JSON.stringify(body)).not.toContain(test.dataFolder);
  });
});

describe('a path that no text has', () => {
  it('is refused, of a page too', async () => {
    for (const path of ['/runs/%E0%A4%A', '/api/v1/runs/%E0%A4%A', '/%'])
      expect((await send({ path })).status, path).toBe(400);
  });
});

describe('an upload that the end of a server cut short', () => {
  it('is gone when the next one starts; what arrived whole stays', async () => {
    const first = await openTestStudio();
    const uploads = join(first.dataFolder, 'uploads');
    await first.studio.close();
    await writeFile(join(uploads, '.partial-0123456789abcdef'), 'half');
    await mkdir(join(uploads, '.partial-fedcba9876543210'));
    await writeFile(join(uploads, 'whole.txt'), 'whole');
    const second = await openTestStudio({ dataFolder: first.dataFolder });
    expect(await readdir(uploads)).toEqual(['whole.txt']);
    await second.close();
    await rm(first.dataFolder, { recursive: true, force: true });
  });
});

describe('a body that means harm', () => {
  it('is refused by size, depth and keys', async () => {
    const json = { 'content-type': 'application/json' };
    const post = (body: string) => send({ method: 'POST', path: '/api/v1/runs', headers: json, body });
    expect((await post(`{"config":{"name":"${'x'.repeat(2 ** 20)}"}}`)).status).toBe(413);
    expect((await post(`{"config":${'['.repeat(10_000)}${']'.repeat(10_000)}}`)).status).toBe(400);
    expect((await post('{"config":')).status).toBe(400);
    expect((await post('{"config":null}')).status).toBe(400);
    expect((await post('{"config":{"__proto__":{"devices":1}}}')).status).toBe(400);
    expect((await post('{"config":{"constructor":{"prototype":{"x":1}}}}')).status).toBe(400);
    expect((await post('{"config":{},"extra":1}')).status).toBe(400);
    expect((await post(`{"config":{"name":"${'x'.repeat(300_000)}"}}`)).status).toBe(400);
    expect(({} as Record<string, unknown>).x).toBeUndefined();
    expect((await test.api.get('/health')).status).toBe(200);
  });

  it('ends with the upload that it breaks off, of which nothing stays', async () => {
    const before = await readdir(join(test.dataFolder, 'uploads'));
    const socket = connect(port, '127.0.0.1');
    socket.on('error', () => undefined);
    socket.write(
      `POST /api/v1/files?kind=text&name=half.txt HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nContent-Length: 1000\r\n\r\nhalf`,
    );
    await new Promise((resolve) => setTimeout(resolve, 200));
    socket.destroy();
    for (let n = 0; n < 100 && (await readdir(join(test.dataFolder, 'uploads'))).length !== before.length; n++)
      await new Promise((resolve) => setTimeout(resolve, 20));
    expect(await readdir(join(test.dataFolder, 'uploads'))).toEqual(before);
  });

  it('is not asked for in strange ways', async () => {
    for (const path of ['http://evil.example/api/v1/runs', '*']) expect((await send({ path })).status).toBe(400);
    expect((await send({ path: '//evil.example/' })).status).toBe(400);
    expect((await send({ path: '/api' })).status).toBe(404);
    expect((await send({ path: '/api/v2/runs' })).status).toBe(404);
    expect((await send({ path: '/api/v1/runs?limit=-1' })).status).toBe(400);
    expect((await send({ path: '/api/v1/runs?limit=1e9' })).status).toBe(400);
    expect((await send({ method: 'PATCH', path: '/api/v1/runs' })).status).toBe(405);
    expect((await send({ path: '/api/v1/runs', headers: { 'x-middleware-subrequest': 'middleware' } })).status).toBe(
      200,
    );
  });
});

describe('what comes back', () => {
  it('cannot be framed, sniffed or run', async () => {
    for (const path of ['/', '/api/v1/runs', `/api/v1/runs/${runId}/checkpoints/step-000002.ckpt`, '/api/v1/none']) {
      const { headers } = await send({ path });
      expect(headers).toMatchObject({
        'x-content-type-options': 'nosniff',
        'x-frame-options': 'DENY',
        'referrer-policy': 'no-referrer',
        'content-security-policy': expect.stringMatching(/default-src 'none'.*frame-ancestors 'none'.*sandbox/),
      });
    }
  });

  it('keeps a name that is a script as text, and disarms a formula in the CSV', async () => {
    const run = await test.api.get(`/runs/${runId}`);
    expect(run.body).toMatchObject({ name: '<script>alert(1)</script> =cmd "; touch x $(x)' });
    expect(run.headers.get('content-type')).toBe('application/json; charset=utf-8');
    const download = await test.api.get(`/runs/${runId}/checkpoints/step-000002.ckpt`);
    expect(download.headers.get('content-disposition')).toMatch(
      /^attachment; filename="[A-Za-z0-9._-]+"; filename\*=UTF-8''[A-Za-z0-9._%-]+$/,
    );
    const formula = await test.api.create({ name: '=1+1', trainer: { steps: 1 } });
    await test.api.until(formula.id, 'finished');
    expect(String((await test.api.get(`/runs/${formula.id}/steps.csv`)).body).split('\r\n')[1]).toMatch(
      /^'=1\+1,[01],0,/,
    );
  });
});

describe('with a token', () => {
  it('is asked of everything, and exchanged once for a cookie', async () => {
    const guarded = await openTestStudio({ token: 'correct-horse' });
    try {
      const ask = (path: string, headers: Record<string, string> = {}, method = 'GET') =>
        rawRequest(guarded.studio.port, { method, path, headers });
      for (const path of [
        '/',
        '/api/v1/runs',
        '/api/v1/health',
        '/api/v1/runs/x/events',
        '/_next/static/x.js',
        '/api/v1/runs?token=correct-horse',
      ])
        expect((await ask(path)).status, path).toBe(401);
      expect((await ask('/api/v1/quick-start', {}, 'POST')).status).toBe(401);
      expect((await ask('/api/v1/runs', { authorization: 'Bearer correct-horse' })).status).toBe(200);
      expect((await ask('/?token=wrong-horse')).status).toBe(401);
      const exchanged = await ask('/?token=correct-horse');
      expect(exchanged.status).toBe(303);
      expect(exchanged.headers.location).toBe('/');
      const cookie = String(exchanged.headers['set-cookie']).split(';')[0];
      expect((await ask('/api/v1/runs', { cookie })).status).toBe(200);
    } finally {
      await guarded.close();
    }
  });

  it('is needed where others can reach the address', async () => {
    await expect(openTestStudio({ host: '0.0.0.0' })).rejects.toThrow(/token/);
    const open = await openTestStudio({ host: '0.0.0.0', token: 'correct-horse' });
    try {
      const { port: at } = open.studio;
      const headers = { authorization: 'Bearer correct-horse' };
      expect((await rawRequest(at, { path: '/api/v1/runs', headers })).status).toBe(200);
      expect(
        (await rawRequest(at, { path: '/api/v1/runs', headers: { ...headers, host: `evil.example:${at}` } })).status,
      ).toBe(403);
    } finally {
      await open.close();
    }
  });
});
