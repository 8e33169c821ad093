import { createServer } from 'node:http';
import { connect, type Socket as TcpSocket } from 'node:net';
import { io, type Socket } from 'socket.io-client';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { EventPage, Hint } from '../contract.ts';
import { openTestStudio, type TestStudio } from '../fixtures/test-studio.ts';
import { Guard } from '../http/guard.ts';
import { closeHttp, listen } from '../http/listen.ts';
import { Hub } from './hub.ts';
import { openSockets, sendHint } from './socket.ts';

let test: TestStudio;
const sockets: Socket[] = [];

beforeAll(async () => {
  test = await openTestStudio();
});
afterEach(() => {
  for (const socket of sockets.splice(0)) socket.disconnect();
});
afterAll(() => test.close());

function open(headers: Record<string, string> = {}, transports: ('websocket' | 'polling')[] = ['websocket']) {
  const socket = io(test.studio.address, { transports, extraHeaders: headers, reconnection: false, forceNew: true });
  sockets.push(socket);
  return socket;
}

const outcome = (socket: Socket) =>
  new Promise<'connected' | 'refused'>((resolve) => {
    socket.once('connect', () => resolve('connected'));
    socket.once('connect_error', () => resolve('refused'));
  });

async function follow(socket: Socket, topic: unknown): Promise<Hint[]> {
  const hints: Hint[] = [];
  socket.on('hint', (hint: Hint) => hints.push(hint));
  if (!socket.connected) await outcome(socket);
  socket.emit('follow', topic);
  return hints;
}

async function eventsAfter(id: string, after: number): Promise<{ seqs: number[]; lastSeq: number }> {
  const { events, lastSeq } = (await test.api.get(`/runs/${id}/events?after=${after}&limit=7`)).body as {
    events: EventPageEvents;
    lastSeq: number;
  };
  return { seqs: events.map(({ seq }) => seq), lastSeq };
}
type EventPageEvents = ReturnType<(typeof EventPage)['parse']>['events'];

/** Follows a run as a page does: pulls on every hint, and goes on until the end. */
async function readByHints(id: string, socket: Socket): Promise<number[]> {
  const seen: number[] = [];
  let wake = () => undefined as unknown;
  socket.on('hint', () => wake());
  await follow(socket, id);
  for (;;) {
    const hinted = new Promise((resolve) => {
      wake = () => resolve(null);
      setTimeout(resolve, 500);
    });
    for (;;) {
      const { seqs, lastSeq } = await eventsAfter(id, seen.at(-1) ?? 0);
      seen.push(...seqs);
      if ((seen.at(-1) ?? 0) >= lastSeq) break;
    }
    const { state, lastSeq } = (await test.api.get(`/runs/${id}`)).body as { state: string; lastSeq: number };
    if (['finished', 'stopped', 'failed'].includes(state) && seen.at(-1) === lastSeq) return seen;
    await hinted;
  }
}

describe('a socket', () => {
  it('is let go at every address that has none, whoever asks', { timeout: 10_000 }, async () => {
    const own = `http://127.0.0.1:${test.studio.port}`;
    const paths = ['/socket.ioX', '/socket.io', '/socket.io?EIO=4&transport=websocket', '/socket.io/', '/', '/_next/x'];
    const asked = paths.flatMap((path) => ['http://evil.example', own].map((origin) => ({ path, origin })));
    await Promise.all(
      asked.map(async ({ path, origin }) => {
        // Its own half of the connection stays open: the studio has to end both.
        const socket = connect({ port: test.studio.port, host: '127.0.0.1', allowHalfOpen: true });
        const closed = new Promise((resolve) => socket.on('end', resolve).on('error', resolve));
        socket.resume();
        socket.write(
          `GET ${path} HTTP/1.1\r\nHost: 127.0.0.1:${test.studio.port}\r\nOrigin: ${origin}\r\n` +
            'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n',
        );
        await closed;
        socket.destroy();
      }),
    );
  });

  it('is only for our own pages and for programs', async () => {
    const own = `127.0.0.1:${test.studio.port}`;
    expect(await outcome(open())).toBe('connected');
    expect(await outcome(open({ origin: `http://${own}` }))).toBe('connected');
    for (const headers of [
      { origin: 'http://evil.example' },
      { origin: 'null' },
      { origin: 'http://evil.example', host: 'evil.example' },
      { host: 'evil.example' },
      { origin: `http://${own}.evil.example` },
      { 'sec-fetch-site': 'cross-site', 'sec-fetch-mode': 'websocket' },
    ] as Record<string, string>[])
      expect(await outcome(open(headers)), JSON.stringify(headers)).toBe('refused');
    expect(await outcome(open({}, ['polling']))).toBe('refused');
  });

  it('needs the token where there is one', async () => {
    const guarded = await openTestStudio({ token: 'correct-horse' });
    const { address } = guarded.studio;
    const to = (headers: Record<string, string>) => {
      const socket = io(address, {
        transports: ['websocket'],
        extraHeaders: headers,
        reconnection: false,
        forceNew: true,
      });
      sockets.push(socket);
      return outcome(socket);
    };
    expect(await to({})).toBe('refused');
    expect(await to({ authorization: 'Bearer correct-horse' })).toBe('connected');
    await guarded.close();
  });

  it('carries hints of what it follows and nothing else', async () => {
    const { id } = await test.api.create({ name: 'ok', trainer: { steps: 3 } });
    const other = await test.api.create({ name: 'ok', adapter: 'interpreter', trainer: { steps: 3 } });
    const run = await follow(open(), id);
    const all = await follow(open(), 'runs');
    const nonsense = await Promise.all(
      ['../x', '', { a: 1 }, 'x'.repeat(100), null].map((topic) => follow(open(), topic)),
    );
    const last = await test.api.until(id, 'finished');
    await test.api.until(other.id, 'finished');
    await new Promise((resolve) => setTimeout(resolve, 250));
    expect(run.length).toBeGreaterThan(0);
    expect(new Set(run.map(({ runId }) => runId))).toEqual(new Set([id]));
    expect(Object.keys(run[0]).sort()).toEqual(['lastSeq', 'runId']);
    expect(Math.max(...run.map(({ lastSeq }) => lastSeq))).toBe(last.lastSeq);
    expect(new Set(all.map(({ runId }) => runId))).toEqual(new Set([id, other.id]));
    expect(nonsense.flat()).toEqual([]);
  });

  it('lets those who come early, late and again read every event once, in order', async () => {
    const { id } = await test.api.create({ name: 'slow', trainer: { steps: 12 } });
    const early = readByHints(id, open());
    const late = new Promise((resolve) => setTimeout(resolve, 1200)).then(() => readByHints(id, open()));
    const broken = open();
    const again = readByHints(id, broken);
    setTimeout(() => broken.disconnect(), 700); // goes on by asking
    const all = await Promise.all([early, late, again]);
    const { lastSeq } = await test.api.until(id, 'finished');
    const whole = Array.from({ length: lastSeq }, (_, i) => i + 1);
    expect(lastSeq).toBeGreaterThan(26);
    for (const seqs of all) expect(seqs).toEqual(whole);
  });

  it('of a client that does not read costs the server nothing', async () => {
    const http = createServer();
    const accepted: TcpSocket[] = [];
    http.on('connection', (socket) => accepted.push(socket));
    const port = await listen(http, '127.0.0.1', 0);
    const live = openSockets(http, new Guard({ host: '127.0.0.1', port, token: null }));
    const client = await stalled(port);
    while (!live.sockets.adapter.rooms.has('runs')) await new Promise((resolve) => setTimeout(resolve, 5));
    // Real hints are 60 bytes; large ones fill the system's own buffers sooner.
    const runId = 'x'.repeat(100_000);
    const waiting: number[] = [];
    for (let lastSeq = 0; lastSeq < 500; lastSeq++) {
      sendHint(live, { runId, lastSeq });
      await new Promise((resolve) => setImmediate(resolve));
      waiting.push(accepted[0].writableLength);
    }
    const clients = Object.values(
      (live.engine as unknown as { clients: Record<string, { writeBuffer: unknown[] }> }).clients,
    );
    expect(clients.map(({ writeBuffer }) => writeBuffer.length)).toEqual([0]);
    // 50 MB were said. What waits is at most the one hint that was on its way when the client stopped reading.
    expect(waiting.at(-1)).toBeGreaterThan(0);
    expect(Math.max(...waiting)).toBeLessThan(2 * runId.length);
    client.destroy();
    await closeHttp(http, live, new Set(accepted));
  });
});

/** A WebSocket client that follows the list of runs and then never reads again. */
async function stalled(port: number): Promise<TcpSocket> {
  const socket: TcpSocket = connect(port, '127.0.0.1');
  socket.on('error', () => undefined);
  socket.write(
    `GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n` +
      'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n',
  );
  const frame = (text: string) => {
    const mask = Buffer.from([1, 2, 3, 4]);
    const body = Buffer.from(text).map((byte, i) => byte ^ mask[i % 4]);
    return Buffer.concat([Buffer.from([0x81, 0x80 | body.length]), mask, body]);
  };
  await new Promise((resolve) => socket.once('data', resolve));
  socket.write(frame('40'));
  await new Promise((resolve) => socket.once('data', resolve));
  socket.write(frame('42["follow","runs"]'));
  socket.pause();
  return socket;
}

describe('the hub', () => {
  it('sends the first news at once and then at most ten a second, with the newest sequence', async () => {
    const sent: (Hint & { atMs: number })[] = [];
    const hub = new Hub((hint) => sent.push({ ...hint, atMs: performance.now() }));
    const start = performance.now();
    for (let seq = 1; performance.now() - start < 450; seq++) {
      hub.notify('a', seq);
      if (seq === 1) hub.notify('b', 7);
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    await new Promise((resolve) => setTimeout(resolve, 250));
    const own = sent.filter(({ runId }) => runId === 'a');
    expect(own[0].lastSeq).toBe(1);
    expect(own.length).toBeGreaterThan(1);
    expect(own.length).toBeLessThanOrEqual(7);
    for (const [i, { lastSeq, atMs }] of own.entries()) {
      if (i === 0) continue;
      expect(lastSeq).toBeGreaterThan(own[i - 1].lastSeq);
      expect(atMs - own[i - 1].atMs).toBeGreaterThan(90);
    }
    expect(sent.filter(({ runId }) => runId === 'b')).toHaveLength(1);
    hub.close();
    hub.notify('a', 9);
    expect(sent).toHaveLength(own.length + 1);
  });
});
