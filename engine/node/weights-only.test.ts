import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { bytesSource } from '../checkpoint/byte-source.ts';
import { METADATA_FILE, readDcpMetadata } from '../checkpoint/dcp-metadata.ts';
import { OPCODE } from '../checkpoint/pickle-opcodes.ts';
import { openZip, readZipEntry } from '../checkpoint/zip-reader.ts';
import { referenceRun, trainRun } from './fixtures/train-run.ts';

/** 50: our files load with weights_only=True, by what torch's restricted unpickler accepts (torch/_weights_only_unpickler.py). */

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'weights-only-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const uint = (at: DataView, bytes: 1 | 4) => (bytes === 1 ? at.getUint8(0) : at.getUint32(0, true));
const bytes = (count: number) => () => count;
const counted = (size: 1 | 4) => (at: DataView) => size + uint(at, size);
const twoLines = (at: DataView) => {
  const text = Buffer.from(at.buffer, at.byteOffset, at.byteLength);
  return text.indexOf('\n', text.indexOf('\n') + 1) + 1;
};
/** Each opcode that it accepts, with the length of what follows it. Of what protocol 2 has not, there is none but EMPTY_SET. */
const ACCEPTED = new Map<number, (at: DataView) => number>([
  [OPCODE.PROTO, bytes(1)],
  [OPCODE.GLOBAL, twoLines],
  [OPCODE.BINPUT, bytes(1)],
  [OPCODE.LONG_BINPUT, bytes(4)],
  [OPCODE.BINGET, bytes(1)],
  [OPCODE.LONG_BINGET, bytes(4)],
  [OPCODE.BINUNICODE, counted(4)],
  [OPCODE.SHORT_BINSTRING, counted(1)],
  [OPCODE.BININT, bytes(4)],
  [OPCODE.BININT1, bytes(1)],
  [OPCODE.BININT2, bytes(2)],
  [OPCODE.LONG1, counted(1)],
  [OPCODE.BINFLOAT, bytes(8)],
  ...[
    OPCODE.MARK,
    OPCODE.STOP,
    OPCODE.EMPTY_DICT,
    OPCODE.EMPTY_LIST,
    OPCODE.EMPTY_SET,
    OPCODE.EMPTY_TUPLE,
    OPCODE.TUPLE,
    OPCODE.TUPLE1,
    OPCODE.TUPLE2,
    OPCODE.TUPLE3,
    OPCODE.REDUCE,
    OPCODE.NEWOBJ,
    OPCODE.BUILD,
    OPCODE.BINPERSID,
    OPCODE.SETITEM,
    OPCODE.SETITEMS,
    OPCODE.APPEND,
    OPCODE.APPENDS,
    OPCODE.NONE,
    OPCODE.NEWTRUE,
    OPCODE.NEWFALSE,
  ].map((code): [number, (at: DataView) => number] => [code, bytes(0)]),
]);

/** The globals of a pickle, all of whose opcodes are accepted; anything else fails, naming where. */
function globalsOf(name: string, pickle: Uint8Array<ArrayBuffer>): string[] {
  const globals: string[] = [];
  expect([...pickle.subarray(0, 2)], `${name}: protocol 2`).toEqual([OPCODE.PROTO, 2]);
  for (let at = 0; at < pickle.length; ) {
    const length = ACCEPTED.get(pickle[at]);
    if (!length) throw new Error(`${name}: opcode 0x${pickle[at].toString(16)} at byte ${at}`);
    const rest = new DataView(pickle.buffer, pickle.byteOffset + at + 1, pickle.length - at - 1);
    const follows = length(rest);
    if (pickle[at] === OPCODE.GLOBAL)
      globals.push(
        Buffer.from(rest.buffer, rest.byteOffset, follows - 1)
          .toString()
          .replace('\n', '.'),
      );
    if (pickle[at] === OPCODE.STOP) expect(at + 1, `${name}: ends with STOP`).toBe(pickle.length);
    at += 1 + follows;
  }
  return globals;
}

/** The pickle of a file that torch.save could have written. */
async function pickleOf(name: string, file: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const zip = await openZip(bytesSource(name, file));
  const entry = [...zip.entries.values()].find((each) => each.name.endsWith('/data.pkl'));
  return readZipEntry(zip, entry!, 2 ** 24);
}

/** Accepted by name; storages and dtypes of torch are too. */
const GLOBALS = /^(collections\.OrderedDict|torch\._utils\._rebuild_tensor_v2|torch\.\w+Storage|_codecs\.encode)$/;
const run = {
  model: { ...referenceRun.model, ninp: 8, nhead: 2, nhid: 8, nlayers: 1 },
  strategy: { kind: 'fsdp' },
  devices: 2,
  precision: '16-mixed',
  trainer: { steps: 1 },
};

it('50: a full file', async () => {
  const { checkpoints } = await trainRun(join(folder, 'full'), { ...run, checkpoint: { format: 'full' } });
  const globals = globalsOf('full', await pickleOf('full', new Uint8Array(await readFile(checkpoints[0]))));
  expect(globals.length).toBeGreaterThan(2);
  for (const global of globals) expect(global).toMatch(GLOBALS);
});

it('50: a folder: .metadata, meta.pt and every entry of the ranks’ files', async () => {
  const { checkpoints } = await trainRun(join(folder, 'sharded'), { ...run, checkpoint: { format: 'sharded' } });
  const files = new Map<string, Uint8Array<ArrayBuffer>>();
  for (const name of await readdir(checkpoints[0]))
    files.set(name, new Uint8Array(await readFile(join(checkpoints[0], name))));
  const metadata = files.get(METADATA_FILE)!;
  // torch reads this one without restriction, of any protocol; older Pythons read no newer than theirs.
  expect(globalsOf(METADATA_FILE, metadata)).toContain('torch.distributed.checkpoint.metadata.Metadata');
  expect(globalsOf('meta.pt', await pickleOf('meta.pt', files.get('meta.pt')!))).toEqual([]);
  const { places } = readDcpMetadata(METADATA_FILE, metadata);
  expect(places.length).toBeGreaterThan(100);
  for (const { name, file, start, bytes: length } of places)
    for (const global of globalsOf(name, await pickleOf(name, files.get(file)!.slice(start, start + length))))
      expect(global, name).toMatch(GLOBALS);
});
