import { pathToFileURL } from 'node:url';
import { PrismaLibSql } from '@prisma/adapter-libsql';
import { PrismaClient } from './generated/client.ts';
import { retryLocked } from './retry.ts';

type LibSqlClient = ReturnType<PrismaLibSql['createClient']>;
type LibSqlTransaction = Awaited<ReturnType<LibSqlClient['transaction']>>;

/**
 * libsql's client opens a new connection after every transaction and leaves the old one to the garbage collector; with
 * it go the pragmas. The adapter holds a mutex from BEGIN to COMMIT, so one connection is enough for everything.
 */
class OneConnection extends PrismaLibSql {
  override createClient(config: Parameters<PrismaLibSql['createClient']>[0]): LibSqlClient {
    const client = super.createClient(config);
    client.transaction = async (): Promise<LibSqlTransaction> => {
      await client.execute('BEGIN IMMEDIATE');
      let open = true;
      const end = async (sql: string) => {
        await client.execute(sql);
        open = false;
      };
      return {
        execute: client.execute.bind(client),
        batch: () => Promise.reject(new Error('a batch inside a transaction is not used')),
        executeMultiple: () => Promise.reject(new Error('a script inside a transaction is not used')),
        commit: () => end('COMMIT'),
        rollback: () => end('ROLLBACK'),
        close: () => {
          if (open) void client.execute('ROLLBACK').catch(() => undefined);
        },
        get closed() {
          return !open;
        },
      } as LibSqlTransaction;
    };
    return client;
  }
}

/** How safe a write must be: `full` survives a power failure, `normal` a killed process. */
export type Durability = 'full' | 'normal';

export interface StudioDb {
  readonly prisma: PrismaClient;
  /**
   * Runs one write after the other, in order of call, with the asked durability; again while another process holds the
   * file locked, so an action must be one statement or one transaction.
   */
  write<T>(durability: Durability, action: (prisma: PrismaClient) => Promise<T>): Promise<T>;
  close(): Promise<void>;
}

/** Opens a migrated SQLite file with the one connection of this process. Writes are queued: SQLite has one writer. */
export async function openDb(file: string): Promise<StudioDb> {
  const prisma = new PrismaClient({ adapter: new OneConnection({ url: pathToFileURL(file).href }) });
  await prisma.$executeRawUnsafe('PRAGMA foreign_keys = ON');
  await prisma.$executeRawUnsafe('PRAGMA synchronous = FULL');
  let current: Durability = 'full';
  let tail: Promise<unknown> = Promise.resolve();
  return {
    prisma,
    write(durability, action) {
      const result = tail.then(async () => {
        if (durability !== current) {
          await prisma.$executeRawUnsafe(`PRAGMA synchronous = ${durability === 'full' ? 'FULL' : 'NORMAL'}`);
          current = durability;
        }
        return retryLocked(() => action(prisma));
      });
      tail = result.catch(() => undefined);
      return result;
    },
    async close() {
      await tail;
      await prisma.$disconnect();
    },
  };
}
