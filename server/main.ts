import { createServer } from 'node:http';
import { fileURLToPath } from 'node:url';
import { type Logger, pino } from 'pino';
import { StudioError } from '../engine/errors.ts';
import { calibrate } from '../engine/node/calibrate.ts';
import { naming } from '../engine/node/file-bytes.ts';
import { tryLock } from '../engine/node/lock-file.ts';
import type { AdapterRates } from '../engine/schedule/rates.ts';
import { type DataFolder, openDataFolder, removePartialUploads } from './data-folder.ts';
import { openDb } from './db/client.ts';
import { migrate } from './db/migrate.ts';
import { isFullDisk } from './db/retry.ts';
import { type Answering, answer, answerUpgrade } from './http/answer.ts';
import { apiRoutes } from './http/api.ts';
import { Guard, isLoopback } from './http/guard.ts';
import { closeHttp, listen, trackConnections } from './http/listen.ts';
import { openPages, type Pages } from './http/pages.ts';
import { Hub } from './live/hub.ts';
import { openSockets, SOCKET_PATH, sendHint } from './live/socket.ts';
import { Reserve } from './reserve.ts';
import { RunStore } from './runs/run-store.ts';
import { AdapterList } from './scheduler/adapter-list.ts';
import { IdleCalibration } from './scheduler/idle-calibration.ts';
import type { CoreTicks } from './scheduler/machine-load.ts';
import { Scheduler, type SchedulerOptions } from './scheduler/scheduler.ts';

export interface StudioSettings {
  readonly host: string;
  /** 0 takes a free one. */
  readonly port: number;
  readonly dataFolder: string;
  /** Asked of everybody; must be given where others can reach the address. */
  readonly token: string | null;
  /** `none` answers the interface only. */
  readonly pages: 'built' | 'dev' | 'none';
  readonly log?: Logger;
  /** What tests replace. */
  readonly adapters?: AdapterList;
  readonly workers?: SchedulerOptions['workers'];
  readonly calibrate?: (places: readonly string[], signal: AbortSignal) => Promise<AdapterRates>;
  readonly readTicks?: () => CoreTicks | null;
}

export interface Studio {
  /** As one opens it in a browser, without a token. */
  readonly address: string;
  readonly port: number;
  /** Ends all workers at once; `close` then has nothing to wait for. */
  kill(): void;
  /** Stops what runs, saving as configured, and everything else, within about half a minute. */
  close(): Promise<void>;
}

const MIGRATIONS = fileURLToPath(new URL('../prisma/migrations', import.meta.url));
/** A client that sends its headers slower than this, or nothing for longer, is let go. */
const HEADERS_MS = 15_000;
const IDLE_MS = 150_000;
/** An upload of 16 GiB takes a while. */
const REQUEST_MS = 3_600_000;
const MAX_CONNECTIONS = 2000;

/**
 * Starts the studio and resolves when it answers. Throws `forbidden` for an address that others reach without a token,
 * `conflict` when another server has the data folder, `port-in-use`, and `io`; nothing is left open then.
 */
export async function startStudio(settings: StudioSettings): Promise<Studio> {
  const closers: Closer[] = [];
  try {
    return await open(settings, closers);
  } catch (error) {
    await closeAll(closers);
    if (error instanceof StudioError || !isFullDisk(error)) throw error;
    const { dataFolder } = settings;
    const message = `The data folder ${dataFolder} cannot be used: its disk is full. Choose another with --data, or make room there.`;
    throw new StudioError('io', message, { folder: dataFolder }, { cause: error });
  }
}

type Closer = () => unknown;

/** Closes in reverse order of opening. */
async function closeAll(closers: Closer[]): Promise<void> {
  for (const close of closers.splice(0).reverse()) await close();
}

async function open(settings: StudioSettings, closers: Closer[]): Promise<Studio> {
  const { host, token, log = pino({ level: 'warn' }, pino.destination(2)) } = settings;
  if (!isLoopback(host) && token === null)
    throw new StudioError(
      'forbidden',
      `Others can reach ${host}, so it needs a token: give --token TOKEN (or STUDIO_TOKEN), or leave --host at 127.0.0.1.`,
    );

  const folder = await openDataFolder(settings.dataFolder);
  closers.push(await lockFolder(folder));
  await removePartialUploads(folder);
  const reserve = new Reserve(folder.root);
  if (await reserve.isFull()) {
    await reserve.release();
    log.warn(
      { folder: folder.root },
      'the disk of the data folder is full: runs can be looked at and deleted, none is taken',
    );
  }
  await migrate(folder.database, MIGRATIONS);
  const db = await openDb(folder.database, () => reserve.release());
  closers.push(() => db.close());

  let pages: Pages | null = null;
  closers.push(() => pages?.close());
  const http = createServer({ headersTimeout: HEADERS_MS, requestTimeout: REQUEST_MS });
  http.timeout = IDLE_MS;
  http.maxConnections = MAX_CONNECTIONS;
  const connections = trackConnections(http);
  // Whoever is so quick to connect before everything is there waits for it.
  const { promise: answering, resolve: begin } = withResolvers<Answering>();
  http.on('request', (request, response) => void answering.then((by) => answer(by, request, response)));
  const port = await listen(http, host, settings.port);
  const guard = new Guard({ host, port, token });
  const io = openSockets(http, guard);
  http.on('upgrade', (request, socket, head) => {
    // socket.io asks the guard by itself. It takes exactly what begins with this, and leaves the rest without an answer.
    if (request.url?.startsWith(`${SOCKET_PATH}/`)) return;
    socket.on('error', () => socket.destroy());
    void answering.then((by) => answerUpgrade(by, request, socket, head));
  });
  closers.push(() => closeHttp(http, io, connections));
  const hub = new Hub((hint) => sendHint(io, hint));
  closers.push(() => hub.close());

  const store = new RunStore(db);
  const adapters = settings.adapters ?? new AdapterList();
  const scheduler = new Scheduler({
    db,
    store,
    folder,
    adapters: () => adapters.get(),
    onNews: (runId, lastSeq) => hub.notify(runId, lastSeq),
    log,
    workers: settings.workers,
  });
  closers.push(() => scheduler.close());
  const calibration = new IdleCalibration({
    adapters: () => adapters.get(),
    held: scheduler.held,
    dataFolder: folder.root,
    measure: settings.calibrate ?? calibrate,
    readTicks: settings.readTicks,
    log,
  });
  closers.push(() => calibration.close());
  if (settings.pages !== 'none') pages = await openPages({ dev: settings.pages === 'dev', host, port });
  await scheduler.start();
  await reserve.hold().catch((error: unknown) => log.warn({ error }, 'no room could be reserved'));

  const by: Answering = {
    guard,
    routes: apiRoutes({ store, scheduler, calibration, adapters, folder, reserve }),
    pages,
    root: folder.root,
    log,
  };
  begin(by);
  return {
    address: `http://${host.includes(':') ? `[${host}]` : host}:${port}`,
    port,
    kill: () => scheduler.kill(),
    close: () => closeAll(closers),
  };
}

function withResolvers<T>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

async function lockFolder(folder: DataFolder): Promise<Closer> {
  const lock = await naming(folder.lock, () => tryLock(folder.lock));
  if ('release' in lock) return () => lock.release();
  throw new StudioError(
    'conflict',
    `Another Shard Studio (process ${lock.pid}) uses the data folder ${folder.root}. It serves already at the address it printed; to start a second one, choose another folder with --data and another --port.`,
  );
}
