import { pathToFileURL } from 'node:url';
import { PrismaLibSql } from '@prisma/adapter-libsql';
import { PrismaClient } from './generated/client.ts';
import { isFull, isLocked, retryLocked } from './retry.ts';

type Client = ReturnType<PrismaLibSql['createClient']>;
type Transaction = Awaited<ReturnType<Client['transaction']>>;

/** How safe a write must be: `full` survives a power failure, `normal` a killed process. */
export type Durability = 'full' | 'normal';

/**
 * libsql's client as this project needs it: one connection for everything. By itself it opens a new one after each
 * transaction, without the pragmas, and leaves the old one to the garbage collector. Prisma's adapter holds a mutex from
 * BEGIN to COMMIT, so one is enough.
 */
class OneConnection extends PrismaLibSql {
  #client: Client | null = null;
  #durability: Durability = 'full';

  override createClient(config: Parameters<PrismaLibSql['createClient']>[0]): Client {
    const client = super.createClient(config);
    const plain = client.execute.bind(client) as (statement: unknown) => ReturnType<Client['execute']>;
    const execute = async (statement: unknown) => {
      try {
        return await plain(statement);
      } catch (error) {
        // libsql leaves a statement that met a lock half run, and no COMMIT succeeds beside it: begin afresh.
        if (isLocked(error)) await this.#renew();
        throw error;
      }
    };
    client.execute = execute as Client['execute'];
    client.transaction = async () => {
      await execute('BEGIN IMMEDIATE');
      let closed = false;
      const rollBack = async (error: unknown) => {
        await plain('ROLLBACK').catch(() => undefined); // there may be nothing left to take back
        throw error;
      };
      const end = async (sql: string) => {
        closed = true;
        await execute(sql);
      };
      return {
        execute,
        commit: () => end('COMMIT').catch(rollBack),
        rollback: () => end('ROLLBACK'),
        close: () => undefined,
        get closed() {
          return closed;
        },
      } as unknown as Transaction;
    };
    this.#client = client;
    return client;
  }

  /** How safe the transactions that follow are. Not to be called during one. */
  async setDurability(durability: Durability): Promise<void> {
    if (durability === this.#durability) return;
    this.#durability = durability;
    await this.#setPragmas();
  }

  async #setPragmas(): Promise<void> {
    await this.#client?.execute('PRAGMA foreign_keys = ON');
    await this.#client?.execute(`PRAGMA synchronous = ${this.#durability}`);
  }

  async #renew(): Promise<void> {
    await this.#client?.reconnect();
    await this.#setPragmas();
  }

  /** To be called once, after the client was made. */
  async prepare(): Promise<void> {
    await this.#setPragmas();
  }
}

export interface StudioDb {
  readonly prisma: PrismaClient;
  /**
   * Runs one write after the other, in order of call, with the asked durability; again while another process holds the
   * file locked, so an action must be one statement or one transaction.
   */
  write<T>(durability: Durability, action: (prisma: PrismaClient) => Promise<T>): Promise<T>;
  close(): Promise<void>;
}

/**
 * Opens a migrated SQLite file with the one connection of this process. Writes are queued: SQLite has one writer. Where the
 * disk has no room for one that must survive a power failure, `makeRoom` may find some: it is then tried once more.
 */
export async function openDb(file: string, makeRoom = async (): Promise<boolean> => false): Promise<StudioDb> {
  const connection = new OneConnection({ url: pathToFileURL(file).href });
  const prisma = new PrismaClient({ adapter: connection });
  await prisma.$connect();
  await connection.prepare();
  let tail: Promise<unknown> = Promise.resolve();
  return {
    prisma,
    write(durability, action) {
      const act = () =>
        retryLocked(async () => {
          await connection.setDurability(durability);
          return action(prisma);
        });
      const result = tail.then(act).catch(async (error: unknown) => {
        if (durability !== 'full' || !isFull(error) || !(await makeRoom())) throw error;
        return act();
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
