import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { cache, root } from './paths.mjs';
import { missingFrom, thisMachine } from './platform.mjs';
import { runStep, SetupError } from './process.mjs';

const minuteMs = 60_000;

/** @throws {SetupError} in one line, if the studio cannot run on this machine */
export function checkPlatform() {
  const line = missingFrom(thisMachine());
  if (line) throw new SetupError(line);
}

/** Installs the packages of package-lock.json, unless exactly these are installed. Needs the network only then. */
export async function ensureInstalled() {
  if (isInstalled(root)) return;
  // npm names itself to what it runs; without npm around us, the PATH has to.
  const npm = process.env.npm_execpath;
  const args = ['ci', '--include=dev', '--include=optional', '--loglevel=error'];
  await runStep('Installing packages', npm ? process.execPath : 'npm', npm ? [npm, ...args] : args, {
    timeoutMs: 30 * minuteMs,
    wayOut: (tail) =>
      /ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ECONNRESET|ENETUNREACH/.test(tail)
        ? 'npm could not reach its registry. Connect this machine (or set npm\'s "registry" or "proxy"), then run the same command again.'
        : /ENOSPC/.test(tail)
          ? 'The disk is full: about 1.5 GB are needed. Free some space, then run the same command again.'
          : 'Run "npm ci" to see all of it; once that works, run the same command again.',
  });
}

/** Writes the Prisma client to server/db/generated, if the schema changed since the last time. Needs no network. */
export async function ensureGenerated() {
  const schema = path.join(root, 'prisma', 'schema.prisma');
  const stamp = new Stamp('prisma-client', hashOf([schema, path.join(root, 'package-lock.json')]));
  if (stamp.isFresh(path.join(root, 'server', 'db', 'generated', 'client.ts'))) return;
  await runStep('Generating the database client', process.execPath, ['scripts/prisma.mjs', 'generate'], {
    timeoutMs: 5 * minuteMs,
    wayOut: () => 'Run "npm run generate" to see all of it.',
  });
  stamp.write();
}

/** Builds the pages, if what they are built from changed since the last time. Needs no network. */
export async function ensureBuilt() {
  const sources = [
    ...['app', 'engine'].flatMap((folder) => filesUnder(path.join(root, folder)).filter(isBuilt)),
    ...['next.config.js', 'postcss.config.mjs', 'tsconfig.json', 'package-lock.json'].map((file) =>
      path.join(root, file),
    ),
  ];
  const stamp = new Stamp('next-build', hashOf(sources));
  if (stamp.isFresh(path.join(root, '.next', 'BUILD_ID'))) return;
  stamp.clear();
  await runStep('Building the pages', process.execPath, ['node_modules/next/dist/bin/next', 'build'], {
    env: { ...process.env, NODE_ENV: 'production', NEXT_TELEMETRY_DISABLED: '1' },
    timeoutMs: 15 * minuteMs,
    wayOut: () => 'Run "npx next build" to see all of it.',
  });
  stamp.write();
}

/**
 * Whether `folder`/node_modules holds the packages of `folder`/package-lock.json: npm writes what it installed to a
 * second lock file there, as its last act.
 *
 * @param {string} folder
 */
export function isInstalled(folder) {
  const installedPath = path.join(folder, 'node_modules', '.package-lock.json');
  if (!existsSync(installedPath)) return false;
  const locked = JSON.parse(readFileSync(path.join(folder, 'package-lock.json'), 'utf8')).packages;
  const installed = JSON.parse(readFileSync(installedPath, 'utf8')).packages;
  for (const [where, { version, integrity, optional, devOptional }] of Object.entries(locked)) {
    if (where === '') continue;
    const found = installed[where];
    if (!found) {
      // A package for another platform is locked but not installed.
      if (optional || devOptional) continue;
      return false;
    }
    if (found.version !== version || found.integrity !== integrity) return false;
    if (!existsSync(path.join(folder, where, 'package.json'))) return false;
  }
  return true;
}

/** Remembers, beside the packages, from what something was made. */
class Stamp {
  constructor(name, hash) {
    this.file = path.join(cache, `${name}.sha256`);
    this.hash = hash;
  }

  isFresh(product) {
    return existsSync(product) && existsSync(this.file) && readFileSync(this.file, 'utf8') === this.hash;
  }

  clear() {
    rmSync(this.file, { force: true });
  }

  write() {
    mkdirSync(cache, { recursive: true, mode: 0o700 });
    writeFileSync(this.file, this.hash);
  }
}

function isBuilt(file) {
  return !/\.test\.tsx?$|\/engine\/(testdata|node)\//.test(file);
}

function filesUnder(folder) {
  if (!existsSync(folder)) return [];
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.join(entry.parentPath ?? entry.path, entry.name))
    .sort();
}

function hashOf(files) {
  const hash = createHash('sha256');
  for (const file of files) {
    if (!existsSync(file)) throw new SetupError(`${path.relative(root, file)} is missing: check the clone out again.`);
    const content = readFileSync(file);
    hash.update(`${path.relative(root, file)} ${content.length}\n`).update(content);
  }
  return hash.digest('hex');
}
