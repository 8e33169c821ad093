import { StudioError } from '../errors.ts';
import { type ByteSource, PIECE_BYTES } from './byte-source.ts';
import type { TensorContent } from './checkpoint-content.ts';
import type { DcpPath } from './dcp-metadata.ts';
import { type DType, dtypeBytes, elementCount, toFloat32 } from './dtype.ts';
import { type PlainValue, type PyDict, type PyValue, toPlain } from './python-value.ts';

/** The three forms of a checkpoint: one torch file, torch's sharded folder, a safetensors file of weights. */
export type CheckpointKind = 'full' | 'sharded' | 'safetensors';

/** A box of a stored tensor: the whole, or one chunk of a sharded one. */
export interface TensorPart {
  /** Name of the file, without its folder. */
  readonly file: string;
  /** The rank that wrote it, where its name says so. */
  readonly rank: number | null;
  readonly offsets: readonly number[];
  readonly sizes: readonly number[];
}

/** A tensor of a stored checkpoint. The same object under two names is one tensor that both share. */
export interface StoredCheckpointTensor extends TensorContent {
  /** Its name where it is stored, prefixes included. */
  readonly name: string;
  readonly parts: readonly TensorPart[];
  /** Elements [first, first + count), row-major and little-endian, in a fresh array at offset 0 of its buffer. */
  readBytes(first: number, count: number): Promise<Uint8Array<ArrayBuffer>>;
}

/** An optimizer as it stands in a checkpoint: parameters by name or by number, options as torch names them. */
export interface StoredOptimizerTree {
  /** Where it was found. */
  readonly path: DcpPath;
  /** Id → part → a tensor or a number. */
  readonly state: ReadonlyMap<string | number, ReadonlyMap<string, PyValue>>;
  readonly groups: readonly PyDict[];
}

/** An opened checkpoint of any kind: what it holds is found by its shape, not by the keys its writer chose. */
export interface StoredCheckpoint {
  readonly kind: CheckpointKind;
  /** How errors call it. */
  readonly name: string;
  /** The state dict, in its own order. */
  readonly model: ReadonlyMap<string, StoredCheckpointTensor>;
  readonly optimizers: readonly StoredOptimizerTree[];
  /** The other keys. */
  readonly rest: PyDict;
  /** Reads everything once against the checks that the format has (CRC-32) and throws 'bad-file' at the first that fails. */
  verify(): Promise<void>;
}

/** Makes a tensor of a checkpoint from the one way to read it. */
export function storedTensor(
  facts: { name: string; dtype: DType; shape: readonly number[]; parts: readonly TensorPart[] },
  readBytes: StoredCheckpointTensor['readBytes'],
): StoredCheckpointTensor {
  const pieceElements = Math.floor(PIECE_BYTES / dtypeBytes(facts.dtype));
  return {
    ...facts,
    kind: 'tensor-content',
    readBytes,
    async *read(first, count) {
      for (let done = 0; done < count; done += pieceElements) {
        yield await readBytes(first + done, Math.min(pieceElements, count - done));
      }
    },
  };
}

/** A part that is all of a tensor, in a file that holds everything. */
export function wholePart(source: ByteSource, shape: readonly number[]): TensorPart {
  const file = source.name.replace(/^.*[/\\]/, '');
  return { file, rank: null, offsets: shape.map(() => 0), sizes: shape };
}

/**
 * Elements [first, first + count) of a parameter as float32. float16 and bfloat16 convert exactly, float64 rounds; other
 * types, and a name that is not there, are 'bad-data'. Nothing else of the checkpoint is read.
 */
export async function readParameter(
  checkpoint: StoredCheckpoint,
  name: string,
  first: number,
  count: number,
): Promise<Float32Array<ArrayBuffer>> {
  const tensor = checkpoint.model.get(name);
  if (!tensor) throw new StudioError('bad-data', `${checkpoint.name} has no parameter ${name}.`, { name });
  return readFloats(checkpoint, tensor, first, count);
}

/** The same of any tensor of a checkpoint. */
export async function readFloats(
  checkpoint: Pick<StoredCheckpoint, 'name'>,
  tensor: StoredCheckpointTensor,
  first: number,
  count: number,
): Promise<Float32Array<ArrayBuffer>> {
  return toFloat32(tensor.dtype, await tensor.readBytes(first, count), `${checkpoint.name}: ${tensor.name}`);
}

/** Optimizer steps done, or null where the checkpoint does not say. Lightning's Trainer calls it global_step. */
export function iterOf({ rest }: Pick<StoredCheckpoint, 'rest'>): number | null {
  const iter = rest.get('iter') ?? rest.get('global_step');
  return typeof iter === 'number' && Number.isSafeInteger(iter) && iter >= 0 ? iter : null;
}

/** Samples consumed, or null where the checkpoint does not say. */
export function samplesOf({ rest }: Pick<StoredCheckpoint, 'rest'>): number | null {
  const samples = rest.get('samples');
  return typeof samples === 'number' && Number.isSafeInteger(samples) && samples >= 0 ? samples : null;
}

/** Where dynamic loss scaling stood, as torch.amp.GradScaler's state_dict has it under the key `scaler`; null if nothing says so. */
export function scalerOf({ rest }: Pick<StoredCheckpoint, 'rest'>): { scale: number; goodSteps: number } | null {
  const scaler = rest.get('scaler');
  if (!(scaler instanceof Map)) return null;
  const [scale, goodSteps] = [scaler.get('scale'), scaler.get('_growth_tracker')];
  if (typeof scale !== 'number' || !Number.isFinite(scale) || scale <= 0) return null;
  return { scale, goodSteps: typeof goodSteps === 'number' && goodSteps >= 0 ? goodSteps : 0 };
}

/** The kernels that a run's steps were computed with: the variants chosen, on an adapter of this name and driver. */
export interface RunKernels {
  readonly adapter: string;
  readonly driver: string;
  readonly variants: Readonly<Record<string, string>>;
}

/** The kernels of the run that wrote it, or null where the checkpoint does not say. */
export function kernelsOf({ rest }: Pick<StoredCheckpoint, 'rest'>): RunKernels | null {
  const kernels = rest.get('kernels');
  if (!(kernels instanceof Map)) return null;
  const [adapter, driver, variants] = [kernels.get('adapter'), kernels.get('driver'), kernels.get('variants')];
  if (typeof adapter !== 'string' || typeof driver !== 'string' || !(variants instanceof Map)) return null;
  const chosen = [...variants].filter((entry): entry is [string, string] => entry.every((e) => typeof e === 'string'));
  return { adapter, driver, variants: Object.fromEntries(chosen) };
}

/** Which masks of dropout the run that wrote it had: of a run of this engine that dropped and does not say, the first. Null for others. */
export function dropoutMasksOf(checkpoint: Pick<StoredCheckpoint, 'rest'>): number | null {
  const masks = checkpoint.rest.get('dropoutMasks');
  if (typeof masks === 'number') return masks;
  const config = configOf(checkpoint) as { readonly model?: { readonly dropout?: PlainValue } } | null;
  const dropout = config?.model?.dropout;
  return typeof dropout === 'number' && dropout > 0 ? 1 : null;
}

/** The config of the run that wrote it, not yet checked, or null. */
export function configOf({ rest }: Pick<StoredCheckpoint, 'rest'>): PlainValue | null {
  const config = rest.get('config');
  return config === undefined ? null : (toPlain(config) ?? null);
}

/** A line of `checkpoint inspect`. */
export interface ListedTensor {
  readonly name: string;
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly elements: number;
  readonly bytes: number;
  readonly parts: readonly TensorPart[];
}

/** Every tensor: the model's under their own names, then those of the optimizers with where they were found. */
export function listTensors({ model, optimizers }: StoredCheckpoint): ListedTensor[] {
  const listed = [...model].map(([name, tensor]) => listing(name, tensor));
  for (const { path, state } of optimizers) {
    for (const [id, parts] of state) {
      for (const [part, value] of parts) {
        if (isStoredTensor(value)) listed.push(listing([...path, 'state', id, part].join('.'), value));
      }
    }
  }
  return listed;
}

export const isStoredTensor = (value: PyValue | undefined): value is StoredCheckpointTensor =>
  value !== null && typeof value === 'object' && 'readBytes' in value;

function listing(name: string, { dtype, shape, parts }: StoredCheckpointTensor): ListedTensor {
  const elements = elementCount(shape);
  return { name, dtype, shape, elements, bytes: elements * dtypeBytes(dtype), parts };
}
