import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import Database from 'libsql';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { parseConfig } from '../../engine/config.ts';
import type { EndEvent, RunEvent } from '../../engine/trainer/events.ts';
import { openDb, type StudioDb } from '../db/client.ts';
import { migrate } from '../db/migrate.ts';
import { RunJournal } from './journal.ts';
import { RunStore } from './run-store.ts';
import { RunTotals } from './run-totals.ts';

const migrations = fileURLToPath(new URL('../../prisma/migrations', import.meta.url));
const id = 'mhx000000-000000';
const end: EndEvent = { event: 'end', status: 'finished', checkpoints: [], peakBytesByRank: [1] };
let place: string;
let file: string;
let db: StudioDb;
let store: RunStore;

beforeEach(async () => {
  place = await mkdtemp(join(tmpdir(), 'journal-'));
  file = join(place, 'studio #1%20.db');
  await migrate(file, migrations);
  db = await openDb(file);
  store = new RunStore(db);
  await store.create({ id, name: 'a', group: null, reason: '', config: parseConfig({}) });
});
afterEach(async () => {
  await db.close();
  await rm(place, { recursive: true, force: true });
});

function journal(options: { lastSeq?: number; totals?: RunTotals | null } = {}) {
  const stored: number[] = [];
  const broken: Error[] = [];
  const it = new RunJournal({
    db,
    runId: id,
    lastSeq: 0,
    totals: new RunTotals(1),
    onStored: (lastSeq) => stored.push(lastSeq),
    onBroken: (error) => broken.push(error),
    ...options,
  });
  return { it, stored, broken };
}

const line = (n: number, length = 0): RunEvent => ({ event: 'log', rank: 0, line: `line ${n} ${'x'.repeat(length)}` });

async function readAll(page: number) {
  const seqs: number[] = [];
  for (;;) {
    const { events, lastSeq } = await store.events(id, seqs.length, page);
    seqs.push(...events.map(({ seq }) => seq));
    if (!events.length || seqs.length >= lastSeq) return seqs;
  }
}

describe('a journal', () => {
  it('stores events in order without holes, in chunks, however they come', async () => {
    const { it: writer, stored } = journal();
    for (let n = 1; n <= 3000; n++) {
      writer.append(line(n, 100));
      if (n % 400 === 0) await new Promise((resolve) => setTimeout(resolve, 60));
    }
    await writer.finish(end, { state: 'finished' });
    const seqs = Array.from({ length: 3001 }, (_, i) => i + 1);
    expect(await readAll(77)).toEqual(seqs);
    const { events } = await store.events(id, 0, 5000);
    expect(events.slice(0, -1).map((event) => (event.event === 'log' ? event.line.split(' ')[1] : ''))).toEqual(
      seqs.slice(0, -1).map(String),
    );
    expect(events.at(-1)).toMatchObject({ event: 'end', seq: 3001 });
    expect(stored).toEqual([...stored].sort((a, b) => a - b));
    const chunks = await db.prisma.eventChunk.findMany({ orderBy: { firstSeq: 'asc' } });
    expect(chunks.length).toBeGreaterThan(3);
    for (const [index, { firstSeq, bytes }] of chunks.entries()) {
      expect(firstSeq).toBe(index ? chunks[index - 1].lastSeq + 1 : 1);
      expect(bytes.length).toBeLessThan(70_000);
    }
    expect(await store.get(id)).toMatchObject({ state: 'finished', lastSeq: 3001 });
  });

  it('tells of events only after they can be read', async () => {
    const { it: writer } = journal();
    const told = new Promise<number>((resolve) => {
      const other = new RunJournal({
        db,
        runId: id,
        lastSeq: 0,
        totals: null,
        onStored: resolve,
        onBroken: () => undefined,
      });
      other.append(line(1));
    });
    const lastSeq = await told;
    expect((await store.events(id, 0, 10)).events).toHaveLength(lastSeq);
    expect(writer).toBeDefined();
  });

  it('goes on where an earlier one stopped', async () => {
    const first = journal();
    first.it.append(line(1));
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect(first.stored).toEqual([1]);
    await journal({ lastSeq: 1, totals: null }).it.finish(end, { state: 'failed' });
    expect(await readAll(10)).toEqual([1, 2]);
  });

  it('waits for a database that another process holds, without blocking and without a loss', async () => {
    const { it: writer, broken } = journal();
    const other = new Database(file);
    other.exec('BEGIN IMMEDIATE');
    writer.append(line(1));
    let turns = 0;
    for (const until = performance.now() + 700; performance.now() < until; turns++)
      await new Promise((resolve) => setTimeout(resolve, 5));
    other.exec('COMMIT');
    other.close();
    await writer.finish(end, { state: 'finished' });
    expect(await readAll(10)).toEqual([1, 2]);
    expect(broken).toEqual([]);
    expect(turns).toBeGreaterThan(15); // a driver that waits inside would have let none pass
  });

  describe('on a full disk', () => {
    const setFull = async () => {
      const [{ page_count: pages }] = await db.prisma.$queryRawUnsafe<{ page_count: bigint }[]>('PRAGMA page_count');
      await db.prisma.$queryRawUnsafe(`PRAGMA max_page_count = ${pages}`);
    };
    const makeRoom = () => db.prisma.$queryRawUnsafe('PRAGMA max_page_count = 1000000');

    it('keeps the events, and stores them when there is room', async () => {
      const { it: writer, stored, broken } = journal();
      await setFull();
      for (let n = 0; n < 100; n++) writer.append(line(n, 3000));
      const failed = vi.spyOn(db, 'write');
      await vi.waitFor(() => expect(failed).toHaveBeenCalled());
      await expect(failed.mock.results[0].value).rejects.toThrow();
      writer.append(line(100));
      await makeRoom();
      await vi.waitFor(() => expect(stored).toContain(101), { timeout: 10_000 });
      expect(broken).toEqual([]);
      await writer.finish(end, { state: 'finished' });
      expect(await readAll(10)).toEqual(Array.from({ length: 102 }, (_, i) => i + 1));
    });

    it('says that it is full once no more can wait, and can still store the end when there is room', async () => {
      const { it: writer, broken } = journal();
      await setFull();
      const failed = vi.spyOn(db, 'write');
      for (let n = 0; n < 100; n++) writer.append(line(n, 3000));
      await vi.waitFor(() => expect(failed).toHaveBeenCalled());
      await expect(failed.mock.results[0].value).rejects.toThrow();
      for (let n = 0; n < 19_000; n++) writer.append(line(n, 4000));
      expect(broken.map(({ message }) => message)).toEqual(['events cannot be stored: the disk is full']);
      await makeRoom();
      await writer.finish(end, { state: 'failed' });
      expect(await readAll(10)).toEqual([1]);
      expect((await store.get(id)).state).toBe('failed');
    });
  });

  it('keeps a flood of log within bounds and steps whole', async () => {
    const { it: writer } = journal();
    for (let n = 0; n < 25_000; n++) writer.append(line(n, n === 5 ? 100_000 : 10));
    await writer.finish(end, { state: 'finished' });
    const { events, lastSeq } = await store.events(id, 0, 30_000);
    expect(lastSeq).toBe(20_002);
    expect(Math.max(...events.map((event) => (event.event === 'log' ? event.line.length : 0)))).toBeLessThan(4100);
    expect(events.at(-2)).toMatchObject({ line: expect.stringContaining('logs/') });
  });
});
