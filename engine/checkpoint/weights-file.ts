import { StudioError } from '../errors.ts';
import type { ByteSource } from './byte-source.ts';
import { type DType, dtypeBytes, elementCount, toFloat32 } from './dtype.ts';
import type { PyDict, PyValue } from './python-value.ts';
import { openSafetensors, startsAsSafetensors } from './safetensors.ts';
import { openTorchFile, startsAsZip } from './torch-file.ts';
import { isTensor, type TorchTensor } from './torch-globals.ts';
import { startsAsLegacyTorch } from './torch-legacy.ts';

/** One named tensor of a weights file, whatever its format. */
export interface StoredTensor {
  readonly dtype: DType;
  readonly shape: readonly number[];
  /** All elements, row-major and little-endian. */
  read(): Promise<Uint8Array<ArrayBuffer>>;
  /** Rows [start, start + count) of dimension 0. */
  readRows(start: number, count: number): Promise<Uint8Array<ArrayBuffer>>;
}

/** A state dict in a file: names as they stand there, nothing stripped. */
export class WeightsFile {
  constructor(
    readonly source: ByteSource,
    readonly format: 'torch' | 'safetensors',
    /** Where in a torch file the state dict was found: keys from the top, empty for the top itself. */
    readonly path: readonly string[],
    readonly tensors: ReadonlyMap<string, StoredTensor>,
  ) {}

  get names(): string[] {
    return [...this.tensors.keys()];
  }

  shape(name: string): readonly number[] {
    return this.tensor(name).shape;
  }

  dtype(name: string): DType {
    return this.tensor(name).dtype;
  }

  /** A tensor as float32, row-major. float16 and bfloat16 convert exactly, float64 rounds; other types are 'bad-data'. */
  async readFloat32(name: string): Promise<Float32Array<ArrayBuffer>> {
    const tensor = this.tensor(name);
    return toFloat32(tensor.dtype, await tensor.read(), `${this.source.name}: ${name}`);
  }

  /** Rows [start, start + count) of dimension 0 as float32; of a contiguous tensor no other bytes are read. */
  async readRows(name: string, start: number, count: number): Promise<Float32Array<ArrayBuffer>> {
    const tensor = this.tensor(name);
    return toFloat32(tensor.dtype, await tensor.readRows(start, count), `${this.source.name}: ${name}`);
  }

  /**
   * Throws one 'bad-data' that lists every tensor that is missing, unexpected or of another shape. Names of `repeated` may
   * be there too: a state_dict lists a tied parameter under each of its names.
   */
  checkShapes(expected: ReadonlyMap<string, readonly number[]>, repeated: ReadonlySet<string> = new Set()): void {
    const missing = [...expected.keys()].filter((name) => !this.tensors.has(name));
    const unexpected = this.names.filter((name) => !expected.has(name) && !repeated.has(name));
    const wrong = [...expected]
      .map(([name, shape]) => ({ name, expected: [...shape], found: [...(this.tensors.get(name)?.shape ?? shape)] }))
      .filter(({ expected, found }) => expected.join() !== found.join());
    if (missing.length + unexpected.length + wrong.length === 0) return;

    const parts = [
      list('missing', missing),
      list('unexpected', unexpected),
      list(
        'of another shape',
        wrong.map((w) => `${w.name} is [${w.found}] and should be [${w.expected}]`),
      ),
    ];
    throw new StudioError(
      'bad-data',
      `The weights in ${this.source.name} do not fit this model: ${parts.filter((part) => part !== '').join('; ')}.`,
      { file: this.source.name, missing, unexpected, wrongShapes: wrong },
    );
  }

  private tensor(name: string): StoredTensor {
    const tensor = this.tensors.get(name);
    if (!tensor)
      throw new StudioError('bad-data', `${this.source.name} has no tensor ${name}.`, { file: this.source.name });
    return tensor;
  }
}

const list = (what: string, items: readonly string[]): string =>
  items.length === 0 ? '' : `${items.length} ${what} (${items.join(', ')})`;

export interface WeightsOptions {
  /** Names the model has, to choose by where a file holds several state dicts. */
  readonly expectedNames?: Iterable<string>;
}

/**
 * Opens the weights in a .safetensors or torch file, told apart by content. In a torch file the state dict is the mapping
 * from names to tensors, at the top or under any key, optimizers left aside. Errors: 'bad-file' for other content, or
 * for none or several state dicts; those of `openTorchFile` and `openSafetensors`.
 */
export async function openWeights(source: ByteSource, options: WeightsOptions = {}): Promise<WeightsFile> {
  const start = await source.read(0, Math.min(16, source.bytes));
  if (startsAsZip(start) || startsAsLegacyTorch(start)) return openTorchWeights(source, options);
  if (startsAsSafetensors(start, source.bytes)) return openSafetensorsWeights(source);
  throw new StudioError('bad-file', `${source.name} is neither a .safetensors file nor one that torch.save wrote.`, {
    file: source.name,
  });
}

async function openSafetensorsWeights(source: ByteSource): Promise<WeightsFile> {
  const file = await openSafetensors(source);
  const tensors = new Map<string, StoredTensor>();
  for (const [name, { dtype, shape, offset, bytes }] of file.tensors) {
    const rowBytes = elementCount(shape.slice(1)) * dtypeBytes(dtype);
    tensors.set(name, {
      dtype,
      shape,
      read: () => source.read(offset, bytes),
      readRows: (first, count) => {
        if (first < 0 || count < 0 || first + count > (shape[0] ?? 0)) {
          throw new StudioError(
            'internal',
            `Rows ${first} to ${first + count} of ${name} with shape [${shape}] were asked for.`,
          );
        }
        return source.read(offset + first * rowBytes, count * rowBytes);
      },
    });
  }
  return new WeightsFile(source, 'safetensors', [], tensors);
}

async function openTorchWeights(source: ByteSource, options: WeightsOptions): Promise<WeightsFile> {
  const file = await openTorchFile(source);
  const { path, stateDict } = chooseStateDict(source, findStateDicts(file.value), options);
  const tensors = new Map<string, StoredTensor>();
  for (const [name, tensor] of stateDict) {
    tensors.set(name, {
      dtype: tensor.dtype,
      shape: tensor.shape,
      read: () => file.readTensor(tensor),
      readRows: (first, count) => file.readRows(tensor, first, count),
    });
  }
  return new WeightsFile(source, 'torch', path, tensors);
}

export interface FoundStateDict {
  readonly path: readonly string[];
  readonly stateDict: ReadonlyMap<string, TorchTensor>;
}

/** Every mapping of names to tensors in a tree, the top first. Optimizers, known by `state` and `param_groups`, are left aside. */
export function findStateDicts(value: PyValue, path: readonly string[] = []): FoundStateDict[] {
  if (!(value instanceof Map) || asOptimizer(value)) return [];
  const stateDict = asStateDict(value);
  if (stateDict) return [{ path, stateDict }];
  return [...value].flatMap(([key, inner]) => findStateDicts(inner, [...path, String(key)]));
}

/** The same value if it is the state of an optimizer, whatever its key. */
export function asOptimizer(value: PyValue): PyDict | undefined {
  const all = value instanceof Map && value.get('state') instanceof Map && Array.isArray(value.get('param_groups'));
  return all ? value : undefined;
}

/** The same mapping if it is one of names to tensors, and nothing else. */
function asStateDict(value: PyDict): ReadonlyMap<string, TorchTensor> | undefined {
  const all = value.size > 0 && [...value].every(([key, item]) => typeof key === 'string' && isTensor(item));
  return all ? (value as ReadonlyMap<unknown, unknown> as ReadonlyMap<string, TorchTensor>) : undefined;
}

/** The one that is meant, or 'bad-file' if there is none or the names do not tell. */
export function chooseStateDict(source: ByteSource, found: FoundStateDict[], options: WeightsOptions): FoundStateDict {
  if (found.length === 1) return found[0];
  const names = [...(options.expectedNames ?? [])];
  const fitting = names.length === 0 ? [] : found.filter(({ stateDict }) => names.every((name) => stateDict.has(name)));
  if (fitting.length === 1) return fitting[0];
  const where = found.map(({ path }) => path.join('.')).join(', ');
  const message =
    found.length === 0
      ? `${source.name} holds no state dict: no mapping from names to tensors. Save one with torch.save(model.state_dict(), …).`
      : `${source.name} holds several state dicts (${where}), and the model's names do not tell which one is meant. Save one of them alone.`;
  throw new StudioError('bad-file', message, { file: source.name, found: found.map(({ path }) => path) });
}
