import { createHash, randomUUID } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import Database from 'libsql';
import { StudioError } from '../../engine/errors.ts';

interface Migration {
  readonly name: string;
  readonly sql: string;
  /** SHA-256 of the SQL, as Prisma's own tool records it. */
  readonly checksum: string;
}

interface AppliedRow {
  migration_name: string;
  checksum: string;
  finished_at: string | null;
  rolled_back_at: string | null;
}

const LOCK_WAIT_MS = 10_000;

// Prisma's own bookkeeping table, so that its tools understand a database made here.
const LEDGER = `CREATE TABLE IF NOT EXISTS "_prisma_migrations" (
  "id" TEXT PRIMARY KEY NOT NULL, "checksum" TEXT NOT NULL, "finished_at" DATETIME, "migration_name" TEXT NOT NULL,
  "logs" TEXT, "rolled_back_at" DATETIME, "started_at" DATETIME NOT NULL DEFAULT current_timestamp,
  "applied_steps_count" INTEGER UNSIGNED NOT NULL DEFAULT 0)`;

/**
 * Brings the SQLite file up to the newest of `folder`'s migrations (`<stamp>_<name>/migration.sql`), each in one
 * transaction, and returns the names it applied. Sets WAL once. Several processes may call this at once.
 *
 * Throws `conflict` for a database that a newer build made or a migration edited after it was applied, and `io` when a
 * migration fails (which then left nothing behind) or the file stays locked for 10 s.
 */
export async function migrate(file: string, folder: string): Promise<string[]> {
  const migrations = await readMigrations(folder);
  const db = open(file);
  const applied: string[] = [];
  try {
    readable(file, db);
    await unlocked(file, () => db.pragma('journal_mode = WAL'));
    db.pragma('synchronous = FULL');
    // Redefining a table drops it, and inside a transaction this pragma does nothing: the drop would delete its children.
    db.pragma('foreign_keys = OFF');
    for (;;) {
      await unlocked(file, () => db.exec('BEGIN IMMEDIATE'));
      try {
        db.exec(LEDGER);
        const next = pending(
          file,
          migrations,
          db.prepare('SELECT * FROM "_prisma_migrations"').all() as AppliedRow[],
        )[0];
        if (next) {
          apply(db, next);
          applied.push(next.name);
        }
        db.exec('COMMIT');
        if (!next) return applied;
      } catch (error) {
        if (db.inTransaction) db.exec('ROLLBACK');
        throw error;
      }
    }
  } finally {
    db.close();
  }
}

function open(file: string): Database.Database {
  try {
    return new Database(file);
  } catch (cause) {
    throw new StudioError(
      'io',
      `The database ${file} cannot be opened: ${(cause as Error).message}.`,
      { file },
      { cause },
    );
  }
}

/** Fails on what is no database before anything is written to it. */
function readable(file: string, db: Database.Database): void {
  try {
    db.prepare('SELECT count(*) FROM sqlite_master').get();
  } catch (cause) {
    if ((cause as { code?: string }).code?.startsWith('SQLITE_BUSY')) return;
    const why = (cause as Error).message;
    throw new StudioError(
      'io',
      `${file} is not a database that can be read (${why}). Move it away, or use another data folder.`,
      { file },
      { cause },
    );
  }
}

async function readMigrations(folder: string): Promise<Migration[]> {
  const entries = await readdir(folder, { withFileTypes: true });
  const names = entries.filter((entry) => entry.isDirectory()).map((entry) => entry.name);
  return Promise.all(
    names.sort().map(async (name) => {
      const sql = await readFile(join(folder, name, 'migration.sql'), 'utf8');
      return { name, sql, checksum: createHash('sha256').update(sql).digest('hex') };
    }),
  );
}

function pending(file: string, migrations: readonly Migration[], rows: readonly AppliedRow[]): Migration[] {
  const done = new Map(
    rows.filter((row) => row.finished_at && !row.rolled_back_at).map((row) => [row.migration_name, row.checksum]),
  );
  const place = `${basename(dirname(file))}/${basename(file)}`;
  for (const { name, checksum } of migrations) {
    if (done.has(name) && done.get(name) !== checksum)
      throw new StudioError(
        'conflict',
        `Migration ${name} was changed after ${place} had applied it. Restore its migration.sql, or use another data folder.`,
      );
  }
  const known = new Set(migrations.map(({ name }) => name));
  for (const name of done.keys()) {
    if (!known.has(name))
      throw new StudioError(
        'conflict',
        `${place} was made by a newer Shard Studio (it has migration ${name}). Update, or use another data folder.`,
      );
  }
  return migrations.filter(({ name }) => !done.has(name));
}

function apply(db: Database.Database, migration: Migration): void {
  try {
    db.exec(migration.sql);
    const orphans = db.prepare('SELECT "table" AS child FROM pragma_foreign_key_check').all() as { child: string }[];
    if (orphans.length) throw new Error(`it leaves ${orphans.length} rows of ${orphans[0].child} without their parent`);
  } catch (cause) {
    throw new StudioError(
      'io',
      `Migration ${migration.name} failed and was taken back: ${(cause as Error).message}.`,
      { migration: migration.name },
      { cause },
    );
  }
  const now = new Date().toISOString().replace('Z', '+00:00');
  db.prepare(
    'INSERT INTO "_prisma_migrations" (id, checksum, finished_at, migration_name, started_at, applied_steps_count) VALUES (?, ?, ?, ?, ?, 1)',
  ).run(randomUUID(), migration.checksum, now, migration.name, now);
}

/** Runs an action that another process's lock may refuse, again and again for up to 10 s, without blocking this one. */
async function unlocked(file: string, action: () => unknown): Promise<void> {
  for (const deadline = performance.now() + LOCK_WAIT_MS; ; ) {
    try {
      action();
      return;
    } catch (cause) {
      const code = (cause as { code?: string }).code ?? '';
      if (!code.startsWith('SQLITE_BUSY')) throw cause;
      if (performance.now() > deadline)
        throw new StudioError(
          'io',
          `Another process has held the database ${file} locked for 10 s.`,
          { file },
          { cause },
        );
      await sleep(20 + Math.random() * 60);
    }
  }
}
