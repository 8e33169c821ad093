import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';
import { bindMigrationAwareSqlAdapterFactory } from '@prisma/driver-adapter-utils';
import * as glue from '@prisma/schema-engine-wasm/schema_engine_bg';

/**
 * The SQL that leads from one Prisma schema to another, by Prisma's own schema engine in WebAssembly: no database, no
 * binary, no network.
 *
 * @param {string | null} from the text of the older schema, null for an empty database
 * @param {string} to the text of the newer schema
 * @returns {Promise<string | null>} SQL, or null if there is no difference
 */
export async function schemaDiff(from, to) {
  const engine = await schemaEngine();
  const { stdout, exitCode } = await engine.diff({
    from: from === null ? { tag: 'empty' } : datamodel(from),
    to: datamodel(to),
    script: true,
    exitCode: true,
    filters: { externalTables: [], externalEnums: [] },
    shadowDatabaseUrl: null,
  });
  // As `prisma migrate diff --exit-code`: 0 says equal, 2 says different.
  return exitCode === 0 ? null : stdout;
}

function datamodel(content) {
  return { tag: 'schemaDatamodel', files: [{ path: 'schema.prisma', content }] };
}

/** @type {Promise<object> | undefined} the WebAssembly module has one state, so one engine serves all */
let engine;

function schemaEngine() {
  engine ??= loadEngine();
  return engine;
}

async function loadEngine() {
  const script = createRequire(import.meta.url).resolve('@prisma/schema-engine-wasm/schema_engine_bg');
  const module = await WebAssembly.compile(await readFile(path.join(path.dirname(script), 'schema_engine_bg.wasm')));
  const { exports } = await WebAssembly.instantiate(module, { './schema_engine_bg.js': glue });
  glue.__wbg_set_wasm(exports);
  exports.__wbindgen_start();

  // The engine wants an adapter but asks it nothing when both sides are schemas.
  const offline = () => Promise.reject(new Error('a diff of two schemas needs no database'));
  const connection = {
    provider: 'sqlite',
    adapterName: 'offline',
    queryRaw: () => Promise.resolve({ columnNames: [], columnTypes: [], rows: [] }),
    executeRaw: offline,
    executeScript: offline,
    startTransaction: offline,
    dispose: () => Promise.resolve(),
  };
  const factory = {
    provider: 'sqlite',
    adapterName: 'offline',
    connect: () => Promise.resolve(connection),
    connectToShadowDb: () => Promise.resolve(connection),
  };
  return glue.SchemaEngine.new({ datamodels: undefined }, () => {}, bindMigrationAwareSqlAdapterFactory(factory));
}
