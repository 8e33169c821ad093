import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { type FileHandle, lstat, mkdir, open, readdir, readFile, rename, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { homedir } from 'node:os';
import { dirname, join, sep } from 'node:path';
import { promisify } from 'node:util';
import { brotliDecompress } from 'node:zlib';
import { StudioError } from '../errors.ts';

/** The npm package that carries a Vulkan loader, a software GPU and a browser, and its version: the last one for Node 20. */
const PACKAGE = '@sparticuz/chromium';
const VERSION = '147.0.0';

/** Where the unpacked Vulkan files lie. */
export interface VulkanFiles {
  /** A Vulkan loader newer than most systems have, with the soname that Dawn opens. */
  readonly loaderPath: string;
  /** The driver manifest of SwiftShader, the software GPU. */
  readonly swiftShaderManifestPath: string;
}

/** The unpacked browser of the tests, and the environment that it must be started with. */
export interface BrowserFiles {
  readonly executablePath: string;
  readonly env: { readonly LD_LIBRARY_PATH: string; readonly FONTCONFIG_PATH: string };
}

/** One file of an archive. */
export interface Member {
  readonly path: string;
  readonly mode: number;
  readonly bytes: Uint8Array;
}

const decompress = promisify(brotliDecompress);

/**
 * Unpacks the Vulkan loader and SwiftShader under node_modules/.cache, once; later calls, and other processes at the
 * same time, find them there. Throws StudioError `io` when no private folder can be written.
 */
export function unpackVulkan(): Promise<VulkanFiles> {
  vulkan ??= unpackIntoCache(`vulkan-${VERSION}`, readVulkan).then((folder) => ({
    loaderPath: join(folder, 'libvulkan.so.1'),
    swiftShaderManifestPath: join(folder, 'vk_swiftshader_icd.json'),
  }));
  return vulkan;
}
let vulkan: Promise<VulkanFiles> | undefined;

/**
 * Unpacks the headless browser with the libraries and fonts that a bare system lacks, as unpackVulkan does. 220 MB of disk.
 * Start it as `chromium.launch({ executablePath, env: { ...process.env, ...env }, args: ['--no-sandbox'] })`.
 */
export function unpackBrowser(): Promise<BrowserFiles> {
  browser ??= unpackIntoCache(`browser-${VERSION}-b`, readBrowser).then((folder) => ({
    executablePath: join(folder, 'chromium'),
    env: { LD_LIBRARY_PATH: join(folder, 'lib'), FONTCONFIG_PATH: folder },
  }));
  return browser;
}
let browser: Promise<BrowserFiles> | undefined;

async function readVulkan(): Promise<Member[]> {
  const wanted = ['libvulkan.so.1', 'libvk_swiftshader.so', 'vk_swiftshader_icd.json'];
  return (await readTar('swiftshader.tar.br')).filter(({ path }) => wanted.includes(path));
}

async function readBrowser(): Promise<Member[]> {
  const [chromium, libraries, fonts, graphics] = await Promise.all([
    readPart('chromium.br'),
    readTar('al2023.tar.br'),
    readTar('fonts.tar.br'),
    readTar('swiftshader.tar.br'),
  ]);
  return [
    { path: 'chromium', mode: 0o755, bytes: chromium },
    ...libraries,
    // The package's own fonts.conf names folders of a cloud function's file system.
    ...fonts.filter((member) => member.path !== 'fonts.conf'),
    { path: 'fonts.conf', mode: 0o644, bytes: new TextEncoder().encode(FONTS_CONF) },
    ...graphics,
  ];
}

const FONTS_CONF = `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir prefix="relative">fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
`;

/** The folder of the npm package's archives. */
function packageFolder(): string {
  const require = createRequire(import.meta.url);
  let entry: string;
  try {
    entry = require.resolve(PACKAGE);
  } catch (cause) {
    throw new StudioError('io', `The npm package ${PACKAGE} is not installed; run npm install.`, {}, { cause });
  }
  const name = join(...PACKAGE.split('/'));
  return entry.slice(0, entry.lastIndexOf(sep + name + sep) + 1 + name.length);
}

async function readPart(file: string): Promise<Uint8Array> {
  const path = join(packageFolder(), 'bin', file);
  try {
    return await decompress(await readFile(path));
  } catch (cause) {
    throw new StudioError(
      'bad-file',
      `${path} cannot be unpacked (${(cause as Error).message}); install ${PACKAGE}@${VERSION} again.`,
      { path },
      { cause },
    );
  }
}

async function readTar(file: string): Promise<Member[]> {
  return parseTar(await readPart(file), file);
}

/** The regular files of a ustar archive. Anything else but folders, or a path that leaves the folder, is refused. */
export function parseTar(archive: Uint8Array, name: string): Member[] {
  const bad = (why: string) => new StudioError('bad-file', `${name} is not an archive that we unpack: ${why}.`);
  const members: Member[] = [];
  const text = (from: number, length: number) => {
    const field = archive.subarray(from, from + length);
    const end = field.indexOf(0);
    return new TextDecoder().decode(end < 0 ? field : field.subarray(0, end)).trim();
  };
  const octal = (from: number, length: number) => Number.parseInt(text(from, length) || '0', 8);
  for (let at = 0; at + 512 <= archive.length && archive[at] !== 0; ) {
    const prefix = text(at + 345, 155);
    const path = prefix ? `${prefix}/${text(at, 100)}` : text(at, 100);
    const size = octal(at + 124, 12);
    const type = String.fromCharCode(archive[at + 156]);
    if (!Number.isSafeInteger(size) || at + 512 + size > archive.length) throw bad(`${path} is cut short`);
    if (path.startsWith('/') || path.split('/').includes('..')) throw bad(`${path} leaves the folder`);
    if (type === '0' || type === '\0') {
      members.push({ path, mode: octal(at + 100, 8) & 0o755, bytes: archive.subarray(at + 512, at + 512 + size) });
    } else if (type !== '5') {
      throw bad(`${path} is neither a file nor a folder`);
    }
    at += 512 + Math.ceil(size / 512) * 512;
  }
  return members;
}

async function unpackIntoCache(name: string, read: () => Promise<Member[]>): Promise<string> {
  return unpackOnce(await privateCacheFolder(), name, read);
}

/**
 * The folder `name` in `cache`, filled with the members that `read` gives if it is not there yet. It appears under its
 * name by one rename when it is whole, so that whoever finds it can use it. Throws StudioError `io`, leaving nothing.
 */
export async function unpackOnce(cache: string, name: string, read: () => Promise<Member[]>): Promise<string> {
  const folder = join(cache, name);
  if (existsSync(folder)) return folder;
  const draft = join(cache, `.draft-${process.pid}-${randomUUID()}`);
  try {
    await removeOldDrafts(cache);
    await mkdir(draft, { mode: 0o700 });
    for (const member of await read()) await writeMember(draft, member);
    await rename(draft, folder).catch((error: NodeJS.ErrnoException) => {
      // Another process was first: its copy is as good.
      if (error.code !== 'ENOTEMPTY' && error.code !== 'EEXIST') throw error;
    });
    return folder;
  } catch (cause) {
    if (cause instanceof StudioError) throw cause;
    throw new StudioError(
      'io',
      `The software GPU and browser cannot be unpacked into ${cache} (${(cause as Error).message}); ` +
        'make room there or make it writable.',
      { path: cache },
      { cause },
    );
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
}

async function writeMember(folder: string, { path, mode, bytes }: Member): Promise<void> {
  const target = join(folder, path);
  await mkdir(dirname(target), { recursive: true, mode: 0o755 });
  let file: FileHandle | undefined;
  try {
    file = await open(target, 'wx', mode);
    await file.writeFile(bytes);
    await file.sync();
  } finally {
    await file?.close();
  }
}

/** Drafts of processes that no longer run. */
async function removeOldDrafts(cache: string): Promise<void> {
  for (const entry of await readdir(cache)) {
    const pid = /^\.draft-(\d+)-/.exec(entry)?.[1];
    if (pid && !existsSync(`/proc/${pid}`)) await rm(join(cache, entry), { recursive: true, force: true });
  }
}

/**
 * A folder of our own for unpacked files: node_modules/.cache/shard-studio, or under the home folder where node_modules
 * belongs to somebody else. Throws StudioError `io` when neither can be had.
 */
export function privateCacheFolder(): Promise<string> {
  const entry = packageFolder();
  const nodeModules = entry.slice(0, entry.lastIndexOf(`${sep}node_modules${sep}`) + `${sep}node_modules`.length);
  return firstPrivateFolder([join(nodeModules, '.cache'), join(homedir(), '.cache')]);
}

/**
 * The folder shard-studio, made if need be, in the first of the parents where it can be and where nobody else can write
 * into it: what lies there is loaded as code.
 */
export async function firstPrivateFolder(parents: readonly string[]): Promise<string> {
  const refusals: string[] = [];
  for (const parent of parents) {
    const folder = join(parent, 'shard-studio');
    try {
      await mkdir(parent, { recursive: true });
      await mkdir(folder, { mode: 0o700 }).catch((error: NodeJS.ErrnoException) => {
        if (error.code !== 'EEXIST') throw error;
      });
      const found = await lstat(folder);
      if (!found.isDirectory()) refusals.push(`${folder} is not a folder`);
      else if (found.uid !== process.getuid?.()) refusals.push(`${folder} belongs to another user`);
      else if (found.mode & 0o022) refusals.push(`${folder} can be written by others`);
      else return folder;
    } catch (error) {
      refusals.push((error as Error).message);
    }
  }
  throw new StudioError('io', `No private folder to unpack the software GPU into: ${refusals.join('; ')}.`);
}
