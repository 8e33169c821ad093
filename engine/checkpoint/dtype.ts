import { StudioError } from '../errors.ts';

/** PyTorch's names without the `torch.` */
export type DType = keyof typeof DTYPES;

interface DTypeFacts {
  /** Bytes of one element. */
  readonly bytes: number;
  /** Bytes that are swapped as one in a big-endian file; a complex number is two of them. */
  readonly wordBytes: number;
  /** torch.<T>Storage, for types old enough to have one. */
  readonly storage: string | null;
  readonly safetensors: string | null;
}

const facts = (bytes: number, storage: string | null, safetensors: string | null, wordBytes = bytes): DTypeFacts => ({
  bytes,
  wordBytes,
  storage,
  safetensors,
});

export const DTYPES = {
  float32: facts(4, 'FloatStorage', 'F32'),
  float64: facts(8, 'DoubleStorage', 'F64'),
  float16: facts(2, 'HalfStorage', 'F16'),
  bfloat16: facts(2, 'BFloat16Storage', 'BF16'),
  int64: facts(8, 'LongStorage', 'I64'),
  int32: facts(4, 'IntStorage', 'I32'),
  int16: facts(2, 'ShortStorage', 'I16'),
  int8: facts(1, 'CharStorage', 'I8'),
  uint8: facts(1, 'ByteStorage', 'U8'),
  bool: facts(1, 'BoolStorage', 'BOOL'),
  complex64: facts(8, 'ComplexFloatStorage', 'C64', 4),
  complex128: facts(16, 'ComplexDoubleStorage', null, 8),
  complex32: facts(4, null, null, 2),
  uint16: facts(2, null, 'U16'),
  uint32: facts(4, null, 'U32'),
  uint64: facts(8, null, 'U64'),
  float8_e4m3fn: facts(1, null, 'F8_E4M3'),
  float8_e5m2: facts(1, null, 'F8_E5M2'),
  float8_e4m3fnuz: facts(1, null, null),
  float8_e5m2fnuz: facts(1, null, null),
  float8_e8m0fnu: facts(1, null, 'F8_E8M0'),
} as const;

export function dtypeBytes(dtype: DType): number {
  return DTYPES[dtype].bytes;
}

/** The number of elements of a shape; 1 for a scalar. Infinity or an unsafe number is the caller's to refuse. */
export function elementCount(shape: readonly number[]): number {
  return shape.reduce((product, size) => product * size, 1);
}

/** dtype by safetensors name, or undefined. */
export function dtypeOfSafetensors(name: string): DType | undefined {
  return (Object.keys(DTYPES) as DType[]).find((dtype) => DTYPES[dtype].safetensors === name);
}

/** dtype by torch storage class (`FloatStorage`), or undefined. */
export function dtypeOfStorage(name: string): DType | undefined {
  return (Object.keys(DTYPES) as DType[]).find((dtype) => DTYPES[dtype].storage === name);
}

/** Reverses the bytes of every word in place: big-endian data becomes little-endian. */
export function swapBytes(data: Uint8Array, dtype: DType): void {
  const word = DTYPES[dtype].wordBytes;
  if (word > 1) for (let at = 0; at < data.length; at += word) data.subarray(at, at + word).reverse();
}

/**
 * Little-endian elements as float32. float32 is a view, not a copy; float16 and bfloat16 convert exactly, float64 rounds.
 * Other types are 'bad-data': integers are not weights.
 */
export function toFloat32(dtype: DType, data: Uint8Array<ArrayBuffer>, what: string): Float32Array<ArrayBuffer> {
  const elements = data.length / dtypeBytes(dtype);
  switch (dtype) {
    case 'float32':
      return new Float32Array(data.buffer, data.byteOffset, elements);
    case 'float64':
      return Float32Array.from(new Float64Array(data.buffer, data.byteOffset, elements));
    case 'float16': {
      const halves = new Uint16Array(data.buffer, data.byteOffset, elements);
      const table = halfTable();
      const out = new Float32Array(elements);
      const bits = new Uint32Array(out.buffer);
      for (let i = 0; i < elements; i++) bits[i] = table[halves[i]];
      return out;
    }
    case 'bfloat16': {
      const tops = new Uint16Array(data.buffer, data.byteOffset, elements);
      const bits = new Uint32Array(elements);
      for (let i = 0; i < elements; i++) bits[i] = tops[i] << 16;
      return new Float32Array(bits.buffer);
    }
    default:
      throw new StudioError(
        'bad-data',
        `${what} is ${dtype}; only float32, float64, float16 and bfloat16 can be weights.`,
        {
          dtype,
        },
      );
  }
}

let halfBits: Uint32Array | undefined;

/** The float32 bits of each of the 65,536 halves. */
function halfTable(): Uint32Array {
  if (halfBits) return halfBits;
  const bits = new Uint32Array(65536);
  const value = new Float32Array(1);
  const valueBits = new Uint32Array(value.buffer);
  for (let half = 0; half < 65536; half++) {
    const sign = (half & 0x8000) << 16;
    const exponent = (half >>> 10) & 31;
    const fraction = half & 0x3ff;
    if (exponent === 31) bits[half] = sign | 0x7f800000 | (fraction << 13);
    else if (exponent > 0) bits[half] = sign | ((exponent + 112) << 23) | (fraction << 13);
    else {
      value[0] = fraction * 2 ** -24;
      bits[half] = sign | valueBits[0];
    }
  }
  halfBits = bits;
  return bits;
}
