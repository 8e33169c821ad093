// What `npm run db:migration -- NAME` runs: writes the SQL that leads from the last migration to prisma/schema.prisma,
// with the schema as it then is beside it, which the next migration starts from. The server applies it when it starts.
import { existsSync, readdirSync } from 'node:fs';
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { root } from './paths.mjs';
import { runScript, SetupError } from './process.mjs';
import { ensureInstalled } from './setup.mjs';

const migrations = path.join(root, 'prisma', 'migrations');

await runScript(async () => {
  const [name, ...rest] = process.argv.slice(2);
  if (!name || rest.length || !/^[a-z][a-z0-9_]{0,60}$/.test(name)) {
    throw new SetupError('usage: npm run db:migration -- NAME   (lower case letters, digits and _)');
  }
  await ensureInstalled();
  const { schemaDiff } = await import('./schema-diff.mjs');

  const last = existsSync(migrations) ? readdirSync(migrations).filter(isMigration).sort().at(-1) : undefined;
  const before = last ? await readFile(path.join(migrations, last, 'schema.prisma'), 'utf8') : null;
  const now = await readFile(path.join(root, 'prisma', 'schema.prisma'), 'utf8');
  const sql = await schemaDiff(before, now);
  if (sql === null) throw new SetupError(`prisma/schema.prisma is what ${last} says: there is nothing to migrate.`);

  const stamp = new Date().toISOString().replaceAll(/\D/g, '').slice(0, 14);
  const folder = path.join(migrations, `${stamp}_${name}`);
  if (last && path.basename(folder) <= last)
    throw new SetupError(`${last} is not in the past: set this machine's clock.`);
  const draft = `${folder}.draft`;
  await rm(draft, { recursive: true, force: true });
  await mkdir(draft, { recursive: true });
  await writeFile(path.join(draft, 'migration.sql'), sql);
  await writeFile(path.join(draft, 'schema.prisma'), now);
  await rename(draft, folder);
  console.log(`${path.relative(root, folder)}/migration.sql:\n\n${sql}`);
});

function isMigration(name) {
  return /^\d{14}_[a-z0-9_]+$/.test(name);
}
