import { StudioError } from '../errors.ts';
import type { TensorContent } from './checkpoint-content.ts';
import { type DType, dtypeBytes, elementCount, toFloat32 } from './dtype.ts';

export interface TensorStatistics {
  readonly elements: number;
  readonly nan: number;
  readonly positiveInfinity: number;
  readonly negativeInfinity: number;
  /** Of the finite elements; null where there are none. */
  readonly min: number | null;
  readonly max: number | null;
  readonly mean: number | null;
  /** Finite elements in equal steps from min to max, the last step closed. */
  readonly histogram: readonly number[];
}

/**
 * What a tensor's elements are like, read twice in pieces and never held. Sums are float64. 'bad-data' for complex numbers
 * and 8-bit floats, which have no order or no numbers here.
 */
export async function tensorStatistics(tensor: TensorContent, bins = 64): Promise<TensorStatistics> {
  const counts = { nan: 0, positiveInfinity: 0, negativeInfinity: 0 };
  let [min, max, sum, finite] = [Infinity, -Infinity, 0, 0];
  for await (const value of numbersOf(tensor)) {
    for (let i = 0; i < value.length; i++) {
      const number = value[i];
      if (Number.isFinite(number)) {
        if (number < min) min = number;
        if (number > max) max = number;
        sum += number;
        finite++;
      } else if (number > 0) counts.positiveInfinity++;
      else if (number < 0) counts.negativeInfinity++;
      else counts.nan++;
    }
  }
  const elements = elementCount(tensor.shape);
  if (finite === 0) return { elements, ...counts, min: null, max: null, mean: null, histogram: [] };
  const histogram = await countBins(tensor, min, max, bins);
  return { elements, ...counts, min, max, mean: sum / finite, histogram };
}

async function countBins(tensor: TensorContent, min: number, max: number, bins: number): Promise<number[]> {
  const histogram = new Array<number>(bins).fill(0);
  // Halved, because the width of all float64 is none.
  const width = max / 2 - min / 2;
  for await (const value of numbersOf(tensor)) {
    for (let i = 0; i < value.length; i++) {
      if (!Number.isFinite(value[i])) continue;
      const position = width > 0 ? (value[i] / 2 - min / 2) / width : 0;
      histogram[Math.min(bins - 1, Math.floor(position * bins))]++;
    }
  }
  return histogram;
}

async function* numbersOf(tensor: TensorContent): AsyncGenerator<ArrayLike<number>> {
  for await (const piece of tensor.read(0, elementCount(tensor.shape))) yield toNumbers(tensor.dtype, piece);
}

/** Little-endian elements as numbers; 64-bit integers round. */
function toNumbers(dtype: DType, piece: Uint8Array): ArrayLike<number> {
  const data = piece.byteOffset % 8 === 0 && piece.buffer instanceof ArrayBuffer ? piece : piece.slice();
  const bytes = data as Uint8Array<ArrayBuffer>;
  const place = [bytes.buffer, bytes.byteOffset, bytes.length / dtypeBytes(dtype)] as const;
  switch (dtype) {
    case 'float64':
      return new Float64Array(...place);
    case 'int64':
      return Array.from(new BigInt64Array(...place), Number);
    case 'uint64':
      return Array.from(new BigUint64Array(...place), Number);
    case 'int32':
      return new Int32Array(...place);
    case 'uint32':
      return new Uint32Array(...place);
    case 'int16':
      return new Int16Array(...place);
    case 'uint16':
      return new Uint16Array(...place);
    case 'int8':
      return new Int8Array(...place);
    case 'uint8':
    case 'bool':
      return bytes;
    case 'float32':
    case 'float16':
    case 'bfloat16':
      return toFloat32(dtype, bytes, 'a tensor');
    default:
      throw new StudioError('bad-data', `There are no statistics of ${dtype}.`, { dtype });
  }
}
