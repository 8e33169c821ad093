import { createHash } from 'node:crypto';
import { cp, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import Database from 'libsql';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { migrate } from './migrate.ts';

const shipped = fileURLToPath(new URL('../../prisma/migrations', import.meta.url));
let place: string;
let folder: string;
let file: string;

beforeEach(async () => {
  place = await mkdtemp(join(tmpdir(), 'migrate-'));
  folder = join(place, 'migrations');
  file = join(place, 'studio.db');
  await mkdir(folder);
});
afterEach(() => rm(place, { recursive: true, force: true }));

async function add(name: string, sql: string): Promise<void> {
  await mkdir(join(folder, name), { recursive: true });
  await writeFile(join(folder, name, 'migration.sql'), sql);
}

function query(sql: string): unknown[] {
  const db = new Database(file);
  try {
    return db.prepare(sql).all();
  } finally {
    db.close();
  }
}

const tables = () =>
  (query(`SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name`) as { name: string }[]).map((t) => t.name);

describe('migrate', () => {
  it('makes the database of this build, once, in WAL', async () => {
    const applied = await migrate(file, shipped);
    expect(applied.length).toBeGreaterThan(0);
    expect(await migrate(file, shipped)).toEqual([]);
    expect(tables()).toEqual(['Checkpoint', 'EventChunk', 'Run', '_prisma_migrations']);
    expect(query('PRAGMA journal_mode')).toEqual([{ journal_mode: 'wal' }]);
  });

  it('ships the schema that the last migration leads to', async () => {
    const last = (await readdir(shipped)).sort().at(-1) as string;
    const now = await readFile(join(shipped, '../schema.prisma'), 'utf8');
    expect(await readFile(join(shipped, last, 'schema.prisma'), 'utf8')).toBe(now);
  });

  it('records the SHA-256 of the SQL as Prisma does', async () => {
    await add('1_a', 'CREATE TABLE a (id INTEGER);');
    await migrate(file, folder);
    const checksum = createHash('sha256').update('CREATE TABLE a (id INTEGER);').digest('hex');
    expect(query('SELECT migration_name, checksum, rolled_back_at FROM _prisma_migrations')).toEqual([
      { migration_name: '1_a', checksum, rolled_back_at: null },
    ]);
  });

  it('takes a failing migration back whole, keeps those before it, and goes on when it is mended', async () => {
    await add('1_a', 'CREATE TABLE a (id INTEGER);');
    await add('2_b', 'CREATE TABLE b (id INTEGER); CREATE TABLE a (id INTEGER);');
    await expect(migrate(file, folder)).rejects.toThrow(/Migration 2_b failed and was taken back/);
    expect(tables()).toEqual(['_prisma_migrations', 'a']);
    await add('2_b', 'CREATE TABLE b (id INTEGER);');
    expect(await migrate(file, folder)).toEqual(['2_b']);
  });

  it('keeps the children of a table that is made anew', async () => {
    await add(
      '1_a',
      'CREATE TABLE p (id INTEGER PRIMARY KEY); CREATE TABLE c (p INTEGER REFERENCES p (id) ON DELETE CASCADE);',
    );
    await migrate(file, folder);
    query('INSERT INTO p VALUES (1) RETURNING id');
    query('INSERT INTO c VALUES (1) RETURNING p');
    await add(
      '2_b',
      'PRAGMA foreign_keys=OFF; CREATE TABLE n (id INTEGER PRIMARY KEY, x TEXT); INSERT INTO n SELECT id, 1 FROM p; DROP TABLE p; ALTER TABLE n RENAME TO p; PRAGMA foreign_keys=ON;',
    );
    await migrate(file, folder);
    expect(query('SELECT count(*) AS n FROM c')).toEqual([{ n: 1 }]);
  });

  it('refuses a migration that leaves children without their parent', async () => {
    await add('1_a', 'CREATE TABLE p (id INTEGER PRIMARY KEY); CREATE TABLE c (p INTEGER REFERENCES p (id));');
    await add('2_b', 'INSERT INTO c VALUES (7);');
    await expect(migrate(file, folder)).rejects.toThrow(/1 rows of c without their parent/);
    expect(query('SELECT count(*) AS n FROM c')).toEqual([{ n: 0 }]);
  });

  it('refuses a database of a newer build, and a migration changed afterwards', async () => {
    await cp(shipped, folder, { recursive: true });
    await add('99999999999999_later', 'CREATE TABLE later (id INTEGER);');
    await migrate(file, folder);
    await expect(migrate(file, shipped)).rejects.toThrow(/newer Shard Studio.*99999999999999_later/);
    await add('99999999999999_later', 'CREATE TABLE later (id TEXT);');
    await expect(migrate(file, folder)).rejects.toThrow(/was changed after/);
  });

  it('lets one of several that start at once do each migration', async () => {
    await add('1_a', 'CREATE TABLE a (id INTEGER);');
    await add('2_b', 'CREATE TABLE b (id INTEGER);');
    const all = await Promise.all([migrate(file, folder), migrate(file, folder), migrate(file, folder)]);
    expect(all.flat().sort()).toEqual(['1_a', '2_b']);
  });

  it('leaves a file alone that is no database', async () => {
    await writeFile(file, 'precious text, longer than the hundred bytes of a header. '.repeat(10));
    await expect(migrate(file, shipped)).rejects.toThrow(/not a database.*another data folder/);
    expect(await readFile(file, 'utf8')).toMatch(/^precious text/);
  });

  it('waits for a process that holds the file', async () => {
    await add('1_a', 'CREATE TABLE a (id INTEGER);');
    await migrate(file, folder);
    await add('2_b', 'CREATE TABLE b (id INTEGER);');
    const other = new Database(file);
    other.exec('BEGIN IMMEDIATE');
    const migrating = migrate(file, folder);
    await new Promise((resolve) => setTimeout(resolve, 250));
    other.exec('COMMIT');
    other.close();
    expect(await migrating).toEqual(['2_b']);
  });
});
