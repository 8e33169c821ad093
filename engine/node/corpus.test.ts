import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { createVocabulary, tokenizeLines } from '../data/wikitext.ts';
import { prepareCorpus } from './corpus.ts';
import { gpt2Tokens } from './gpt2-tokens.ts';
import { type Lock, tryLock } from './lock-file.ts';

const sample = readFileSync(new URL('../testdata/sample.txt', import.meta.url));
const expected = JSON.parse(readFileSync(new URL('../testdata/sample_tokens.json', import.meta.url), 'utf8')) as {
  ids: number[];
  words: string[];
};

let folder: string;
let cache: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'corpus-'));
  cache = join(folder, 'data/corpora');
  path = join(folder, 'text.txt');
});
afterEach(() => rmSync(folder, { recursive: true }));

async function prepare() {
  let prepared = 0;
  const corpus = await prepareCorpus({ kind: 'wikitext2', path }, cache, { onPrepare: () => prepared++ });
  return { corpus, prepared };
}

const refusal = (code: string, message: RegExp) =>
  expect.objectContaining({ code, message: expect.stringMatching(message) });

it('prepares a text once, then reads the cache', async () => {
  writeFileSync(path, sample);
  for (const prepared of [1, 0]) {
    const result = await prepare();
    expect(result.prepared).toBe(prepared);
    expect(result.corpus).toMatchObject({
      kind: 'wikitext2',
      path,
      words: expected.words,
      vocabSize: expected.words.length,
    });
    expect([...result.corpus.tokens]).toEqual(expected.ids);
  }
  expect(readdirSync(cache)).toHaveLength(1);
});

it('prepares a changed text anew', async () => {
  writeFileSync(path, sample);
  const before = (await prepare()).corpus;
  appendFileSync(path, 'more\n');
  const { corpus, prepared } = await prepare();
  expect(prepared).toBe(1);
  expect(corpus.tokens.length).toBe(before.tokens.length + 2);
  expect(corpus.sha256).not.toBe(before.sha256);
});

it.each<[string, (bytes: Buffer) => Buffer]>([
  ['with a flipped bit', (bytes) => Buffer.from(bytes.map((byte, i) => (i === 20 ? byte ^ 1 : byte)))],
  ['cut short', (bytes) => bytes.subarray(0, -1)],
  ['empty', () => Buffer.alloc(0)],
])('makes a cache entry %s again', async (_, damage) => {
  writeFileSync(path, sample);
  const { corpus } = await prepare();
  const entry = join(cache, readdirSync(cache)[0]);
  const whole = readFileSync(entry);
  writeFileSync(entry, damage(whole));
  expect(await prepare()).toEqual({ corpus, prepared: 1 });
  expect(readFileSync(entry)).toEqual(whole);
});

it('cuts no character where it cuts the file into blocks', async () => {
  const text = `x${'é€🐋'.repeat(60_000)} end`; // two blocks and more, at odd places
  writeFileSync(path, text);
  const vocabulary = createVocabulary();
  const { corpus } = await prepare();
  expect([...corpus.tokens]).toEqual([...tokenizeLines(text, vocabulary)]);
  expect(corpus.words).toEqual(vocabulary.words);
});

it('keeps a byte order mark, as Python does', async () => {
  writeFileSync(path, '\ufeffa a');
  expect((await prepare()).corpus.words).toEqual(['\ufeffa', 'a', '<eos>']);
});

it.each<[string, () => void, RegExp]>([
  ['absent', () => {}, /^There is no file .*text\.txt\. Give a UTF-8 text file, or set data\.kind to moby-dick\.$/],
  ['empty', () => writeFileSync(path, ''), /text\.txt is empty\. Give/],
  ['a folder', () => mkdirSync(path), /text\.txt is not a file\. Give/],
  [
    'Latin-1',
    () => writeFileSync(path, Buffer.from('caf\xe9 au lait', 'latin1')),
    /text\.txt is not UTF-8 at byte 3\. Give/,
  ],
  [
    'not UTF-8 far in',
    () => writeFileSync(path, Buffer.concat([Buffer.alloc(600_001, 'é'), Buffer.of(0xff)])),
    / at byte 600000\. /,
  ],
  ['cut within its last character', () => writeFileSync(path, Buffer.of(0x61, 0xf0, 0x9f, 0x90)), / at byte 1\. /],
])('refuses a text that is %s, and leaves nothing in the cache', async (_, make, message) => {
  make();
  await expect(prepare()).rejects.toEqual(refusal('bad-data', message));
  mkdirSync(cache, { recursive: true });
  expect(readdirSync(cache)).toEqual([]);
});

it('says where the cache could not be kept', async () => {
  writeFileSync(path, sample);
  cache = join(path, 'cache');
  await expect(prepare()).rejects.toEqual(
    refusal(
      'io',
      /Cannot keep the prepared text in .*text\.txt\/cache: ENOTDIR\. Name another data folder in STUDIO_DATA/,
    ),
  );
});

it('waits for another no longer than it was told, then names it and the lock', async () => {
  writeFileSync(path, sample);
  const { corpus } = await prepare();
  const entry = join(cache, readdirSync(cache)[0]);
  rmSync(entry);
  const lock = (await tryLock(`${entry}.lock`)) as Lock;
  const options = { waitMs: 60 };
  await expect(prepareCorpus({ kind: 'wikitext2', path }, cache, options)).rejects.toEqual(
    refusal('timeout', new RegExp(`Waited 60 ms for process ${process.pid} .*delete ${entry}\\.lock`)),
  );

  const waiting = prepare();
  await lock.release();
  expect(await waiting).toEqual({ corpus, prepared: 1 });
});

it('has the book in its order', async () => {
  const { tokens, words } = await prepareCorpus({ kind: 'moby-dick' }, cache);
  const text = (from: number, to: number) => Array.from(tokens.subarray(from, to), (id) => words?.[id]).join(' ');
  expect(text(0, 3)).toBe('ETYMOLOGY. (Supplied by');
  const whole = text(0, tokens.length);
  const at = [
    'EXTRACTS. (Supplied',
    'CHAPTER 1. Loomings.',
    'Call me Ishmael. Some',
    'CHAPTER 2. The',
    'CHAPTER 10. A',
    'CHAPTER 135. The',
    'Epilogue "AND',
  ].map((heading) => whole.indexOf(heading));
  expect(Math.min(...at)).toBeGreaterThan(0);
  expect(at).toEqual([...at].sort((a, b) => a - b));
  expect([tokens.length, words?.length]).toEqual([217_257, 32_918]);
});

it("keeps GPT-2's tokens beside the words of the same text", async () => {
  const text = `${'Call me Ishmael.\r\n\n  Some years ago, '.repeat(6_500)}🐋`; // two blocks, cut within words and \r\n
  writeFileSync(path, text);
  const { corpus: words } = await prepare();
  const tokens = await gpt2Tokens();
  for (const prepared of [1, 0]) {
    let count = 0;
    const source = { kind: 'wikitext2', path, tokenizer: 'gpt2' } as const;
    const corpus = await prepareCorpus(source, cache, { onPrepare: () => count++ });
    expect(count).toBe(prepared);
    expect(corpus).toMatchObject({ words: null, vocabSize: 50_257, sha256: words.sha256 });
    expect([...corpus.tokens.subarray(0, 6)]).toEqual([14134, 502, 1148, 21720, 417, 13]);
    expect(
      Buffer.compare(Buffer.from(corpus.tokens.buffer), Buffer.from(Int32Array.from(tokens.encode(text)).buffer)),
    ).toBe(0);
    expect(tokens.decode([...corpus.tokens]) === text).toBe(true);
  }
  expect((await prepare()).prepared).toBe(0);
  expect(readdirSync(cache)).toHaveLength(2);
});

it('is prepared by one of several processes that start at once', { timeout: 30_000 }, async () => {
  const fixture = new URL('fixtures/prepare-corpus.ts', import.meta.url);
  const children: ChildProcess[] = [1, 2, 3].map(() => fork(fixture, [cache], { execArgv: ['--import', 'tsx'] }));
  try {
    await Promise.all(children.map((child) => once(child, 'message')));
    const results = children.map(async (child) => {
      child.send('go');
      return (await once(child, 'message'))[0] as { prepared: number; tokens: number; vocabSize: number };
    });
    const reports = await Promise.all(results);
    expect(reports.map(({ prepared }) => prepared).sort()).toEqual([0, 0, 1]);
    for (const report of reports) expect(report).toMatchObject({ tokens: 217_257, vocabSize: 32_918 });
    expect(readdirSync(cache)).toHaveLength(1);
  } finally {
    for (const child of children) child.kill('SIGKILL');
  }
});
