import { StudioError } from '../errors.ts';
import { asInstance, type DcpInstance, dcpGlobals, fieldOf, propertiesOf } from './dcp-globals.ts';
import { type DType, dtypeBytes, elementCount } from './dtype.ts';
import { readPickle } from './pickle-reader.ts';
import { type PyDict, PyTuple, type PyValue, sequenceItems } from './python-value.ts';
import type { TorchDType } from './torch-globals.ts';

/** A box of a tensor: its first element and its size in each dimension. A scalar's has no dimensions. */
export interface DcpChunk {
  readonly offsets: readonly number[];
  readonly sizes: readonly number[];
}

export interface DcpTensor {
  readonly kind: 'tensor';
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly chunks: readonly DcpChunk[];
}

/** Any other value, saved by itself. */
export interface DcpBytes {
  readonly kind: 'bytes';
}

/** Where one chunk, or one other value, lies. */
export interface DcpPlace {
  readonly name: string;
  /** The chunk's; null for a value that is no tensor. */
  readonly offsets: readonly number[] | null;
  /** A name in the folder, without separators. */
  readonly file: string;
  readonly start: number;
  readonly bytes: number;
}

/** Keys from the top of what was saved: dict keys and list positions. */
export type DcpPath = readonly (string | number)[];

/** What `.metadata` says, as plain data. */
export interface DcpMetadata {
  readonly items: ReadonlyMap<string, DcpTensor | DcpBytes>;
  /** Of every item. A folder written without them has each name as its own path. */
  readonly paths: ReadonlyMap<string, DcpPath>;
  readonly places: readonly DcpPlace[];
  /** The folder it was saved to, as torch was told. */
  readonly checkpointId: string | null;
}

/** The file of a sharded checkpoint that says what is where. */
export const METADATA_FILE = '.metadata';

const MAX_DIMENSIONS = 64;
const MAX_PATH_STEPS = 64;

/**
 * Reads `.metadata`, of torch 2.0 and later, through an allow-list of its own. Every chunk lies inside its tensor and every
 * file name inside the folder; whether the files are long enough is checked where they are opened. Errors:
 * 'refused-global' names what no checkpoint needs, 'bad-file' the item that makes no sense.
 */
export function readDcpMetadata(file: string, bytes: Uint8Array): DcpMetadata {
  return new MetadataParser(file).parse(readPickle(bytes, { file, globals: dcpGlobals }));
}

/** Turns the tree of a pickle into plain data, naming the file in every error. */
class MetadataParser {
  constructor(private readonly file: string) {}

  parse(value: PyValue): DcpMetadata {
    const root = this.instance(value, 'Metadata', 'the whole');
    const items = new Map<string, DcpTensor | DcpBytes>();
    for (const [key, item] of this.dict(fieldOf(root, 'state_dict_metadata'), 'state_dict_metadata')) {
      const name = this.text(key, 'a name');
      items.set(name, asInstance(item, 'BytesStorageMetadata') ? { kind: 'bytes' } : this.tensor(name, item));
    }
    return {
      items,
      paths: this.paths(fieldOf(root, 'planner_data'), items),
      places: this.places(fieldOf(root, 'storage_data')),
      checkpointId: this.checkpointId(fieldOf(root, 'storage_meta')),
    };
  }

  private tensor(name: string, value: PyValue): DcpTensor {
    const tensor = this.instance(value, 'TensorStorageMetadata', name);
    const properties = this.instance(fieldOf(tensor, 'properties'), 'TensorProperties', `properties of ${name}`);
    const dtype = propertiesOf(properties)[0] as TorchDType | null | undefined;
    if (dtype?.kind !== 'dtype') throw this.bad(`${name} has no dtype`);
    const shape = this.sizes(fieldOf(tensor, 'size'), `the size of ${name}`);
    if (!Number.isSafeInteger(elementCount(shape) * dtypeBytes(dtype.dtype)))
      throw this.bad(`${name} has the impossible shape [${shape}]`);
    const chunks = sequenceItems(fieldOf(tensor, 'chunks')) ?? [];
    return { kind: 'tensor', dtype: dtype.dtype, shape, chunks: chunks.map((chunk) => this.chunk(name, shape, chunk)) };
  }

  private chunk(name: string, shape: readonly number[], value: PyValue): DcpChunk {
    const chunk = this.instance(value, 'ChunkStorageMetadata', `a chunk of ${name}`);
    const offsets = this.sizes(fieldOf(chunk, 'offsets'), `a chunk of ${name}`);
    const sizes = this.sizes(fieldOf(chunk, 'sizes'), `a chunk of ${name}`);
    const fits = offsets.length === shape.length && sizes.length === shape.length;
    if (!fits || shape.some((size, dim) => offsets[dim] + sizes[dim] > size)) {
      throw this.bad(`${name} of shape [${shape}] has a chunk of [${sizes}] at [${offsets}], which is not inside it`);
    }
    return { offsets, sizes };
  }

  private paths(value: PyValue | undefined, items: ReadonlyMap<string, unknown>): ReadonlyMap<string, DcpPath> {
    const paths = new Map<string, DcpPath>([...items.keys()].map((name) => [name, [name]]));
    if (value === undefined || value === null) return paths;
    for (const [key, item] of this.dict(value, 'planner_data')) {
      const name = this.text(key, 'a name in planner_data');
      const path = sequenceItems(item) ?? [];
      if (path.length === 0 || path.length > MAX_PATH_STEPS || !path.every(isPathStep))
        throw this.bad(`the path of ${name} is no list of keys`);
      if (paths.has(name)) paths.set(name, path);
    }
    return paths;
  }

  private places(value: PyValue | undefined): DcpPlace[] {
    const places: DcpPlace[] = [];
    for (const [key, item] of this.dict(value, 'storage_data')) {
      const index = this.instance(key, 'MetadataIndex', 'a key of storage_data');
      const name = this.text(fieldOf(index, 'fqn'), 'a name in storage_data');
      const offset = fieldOf(index, 'offset') ?? null;
      const info = this.instance(item, '_StorageInfo', `the place of ${name}`);
      if (sequenceItems(fieldOf(info, 'transform_descriptors'))?.length) {
        throw this.bad(`${name} was stored through a transform (compressed or encrypted), which is not read here`);
      }
      places.push({
        name,
        offsets: offset === null ? null : this.sizes(offset, `the place of ${name}`),
        file: this.fileName(fieldOf(info, 'relative_path'), name),
        start: this.count(fieldOf(info, 'offset'), `the place of ${name}`),
        bytes: this.count(fieldOf(info, 'length'), `the place of ${name}`),
      });
    }
    return places;
  }

  /** Names never leave the folder. */
  private fileName(value: PyValue | undefined, name: string): string {
    const file = this.text(value, `the file of ${name}`);
    if (!/^[^/\\:\0]+$/.test(file) || file === '.' || file === '..') {
      throw this.bad(`${name} lies in ${JSON.stringify(file)}, which leaves the folder`);
    }
    return file;
  }

  private checkpointId(value: PyValue | undefined): string | null {
    const meta = asInstance(value, 'StorageMeta');
    const id = meta && fieldOf(meta, 'checkpoint_id');
    return typeof id === 'string' ? id : null;
  }

  private instance(value: PyValue | undefined, className: string, what: string): DcpInstance {
    const instance = asInstance(value, className);
    if (!instance) throw this.bad(`${what} is no ${className}`);
    return instance;
  }

  private dict(value: PyValue | undefined, what: string): PyDict {
    if (!(value instanceof Map)) throw this.bad(`${what} is no dict`);
    return value;
  }

  private text(value: PyValue | undefined, what: string): string {
    if (typeof value !== 'string' || value === '') throw this.bad(`${what} is no text`);
    return value;
  }

  private count(value: PyValue | undefined, what: string): number {
    if (!isCount(value)) throw this.bad(`${what} is no whole number from 0`);
    return value;
  }

  private sizes(value: PyValue | undefined, what: string): number[] {
    const items = value instanceof PyTuple ? value.items : undefined;
    if (!items || items.length > MAX_DIMENSIONS || !items.every(isCount)) throw this.bad(`${what} is no torch.Size`);
    return [...items];
  }

  private bad(what: string): StudioError {
    return new StudioError('bad-file', `${this.file} is damaged: ${what}.`, { file: this.file });
  }
}

const isCount = (value: PyValue | undefined): value is number => Number.isSafeInteger(value) && (value as number) >= 0;
const isPathStep = (value: PyValue): value is string | number => typeof value === 'string' || isCount(value);
