import { StudioError } from '../errors.ts';
import { type ByteSource, sliceSource } from './byte-source.ts';
import { dtypeBytes } from './dtype.ts';
import { PickleArgumentError, type PickleOptions, readPickleHead } from './pickle-reader.ts';
import { type PyValue, sequenceItems } from './python-value.ts';
import { type TorchStorage, torchGlobals, torchPersistent } from './torch-globals.ts';

/** How a file in torch's format from before 1.6 begins: a pickle of its magic number. */
const START = [0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20];
const PROTOCOL = 1001;
/** The first attempt at a pickle whose length nobody says; each further one takes eight times as much. */
const FIRST_WINDOW_BYTES = 64 * 1024;
/** Each storage is led by the number of its elements, as int64. */
const COUNT_BYTES = 8;

/** Whether the first bytes of a file are those of torch's older format. */
export const startsAsLegacyTorch = (start: Uint8Array): boolean => START.every((byte, i) => start[i] === byte);

/** A file of the older format, its pickles read and its storages located. */
export interface LegacyTorch {
  readonly value: PyValue;
  readonly bigEndian: boolean;
  openStorage(storage: TorchStorage): Promise<ByteSource>;
}

/**
 * Opens what torch.save wrote before 1.6 (or with `_use_new_zipfile_serialization=False`): five pickles (magic number,
 * protocol, machine, values, storage keys), then each storage as its element count and its bytes. Executes nothing. Each
 * storage must be as long as the pickle says and the file end with the last one, else 'bad-file'.
 */
export async function openLegacyTorch(source: ByteSource, maxPickleBytes: number): Promise<LegacyTorch> {
  const storages = new Map<string, TorchStorage>();
  const reader = new PickleSequence(source, maxPickleBytes);
  await reader.next(() => undefined); // The magic number, by which the file was recognised.
  if ((await reader.next(() => undefined)) !== PROTOCOL) throw bad(source, `its protocol is not ${PROTOCOL}`);
  const machine = await reader.next(() => undefined);
  const little = machine instanceof Map ? machine.get('little_endian') : undefined;
  if (typeof little !== 'boolean') throw bad(source, 'it does not say its byte order');
  const value = await reader.next(torchGlobals, (id) => rememberStorage(id, storages));
  const keys = sequenceItems(await reader.next(() => undefined));

  const places = await locate(source, reader.at, keys, storages, little);
  return {
    value,
    bigEndian: !little,
    async openStorage({ key }) {
      return places.get(key)!;
    },
  };
}

function bad(source: ByteSource, what: string): StudioError {
  return new StudioError('bad-file', `${source.name} is damaged: ${what}.`, { file: source.name });
}

/** The older id has a sixth item, a view of another storage, which torch has not written since 0.4. */
function rememberStorage(id: PyValue, storages: Map<string, TorchStorage>): TorchStorage {
  const view = sequenceItems(id)?.[5];
  if (view !== undefined && view !== null) throw new PickleArgumentError('a storage that is a view of another');
  const storage = torchPersistent(id);
  const known = storages.get(storage.key);
  if (known && known.bytes !== storage.bytes) throw new PickleArgumentError(`storage ${storage.key} with two lengths`);
  storages.set(storage.key, known ?? storage);
  return storage;
}

/** Where each storage lies, by key. */
async function locate(
  source: ByteSource,
  start: number,
  keys: readonly PyValue[] | undefined,
  storages: ReadonlyMap<string, TorchStorage>,
  littleEndian: boolean,
): Promise<ReadonlyMap<string, ByteSource>> {
  const places = new Map<string, ByteSource>();
  let at = start;
  for (const key of keys ?? []) {
    const storage = typeof key === 'string' ? storages.get(key) : undefined;
    if (!storage || places.has(storage.key)) throw bad(source, 'it lists a storage twice, or one that no tensor has');
    const count = new DataView((await source.read(at, COUNT_BYTES)).buffer).getBigInt64(0, littleEndian);
    const elementBytes = storage.dtype ? dtypeBytes(storage.dtype) : 1;
    if (Number(count) * elementBytes !== storage.bytes) {
      throw bad(source, `storage ${storage.key} should have ${storage.bytes} bytes and has ${count} elements`);
    }
    at += COUNT_BYTES;
    places.set(storage.key, sliceSource(source, at, storage.bytes, `${source.name} (storage ${storage.key})`));
    at += storage.bytes;
  }
  if (places.size !== storages.size) throw bad(source, `${storages.size - places.size} of its storages are missing`);
  if (at !== source.bytes) throw bad(source, `its storages end at byte ${at}, but it has ${source.bytes}`);
  return places;
}

/** Pickles one after the other from the start of a file. */
class PickleSequence {
  at = 0;

  constructor(
    private readonly source: ByteSource,
    private readonly maxPickleBytes: number,
  ) {}

  /** The next one. Its length is not known, so more of the file is taken until it ends. */
  async next(globals: PickleOptions['globals'], persistent?: PickleOptions['persistent']): Promise<PyValue> {
    const { source } = this;
    const most = Math.min(this.maxPickleBytes, source.bytes - this.at);
    for (let window = Math.min(FIRST_WINDOW_BYTES, most); ; window = Math.min(8 * window, most)) {
      const bytes = await source.read(this.at, window);
      try {
        const { value, bytes: used } = readPickleHead(bytes, { file: source.name, globals, persistent });
        this.at += used;
        return value;
      } catch (error) {
        if (!(error instanceof StudioError) || error.details.cutShort !== true || window === most) throw error;
      }
    }
  }
}
