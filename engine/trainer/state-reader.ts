import { StudioError } from '../errors.ts';
import type { RankEngine } from '../schedule/rank-engine.ts';
import type { Tensor } from '../schedule/schedule.ts';

/** Bytes [offset, offset + bytes) of a state tensor, as float32 whatever it is stored as, that a rank keeps, as fresh bytes or a view that stays as it is. */
export type StateReader = (tensor: string, offsetBytes: number, bytes: number) => Promise<Uint8Array<ArrayBuffer>>;

/** Reads straight from where the rank keeps its state; it must not train meanwhile. */
export function engineReader(engine: RankEngine): StateReader {
  return async (tensor, offsetBytes, bytes) => new Uint8Array((await engine.read(tensor, offsetBytes, bytes)).buffer);
}

/** Copies these tensors to host memory, so that the rank may train on while they are written. */
export async function copiedReader(engine: RankEngine, tensors: Iterable<Tensor>): Promise<StateReader> {
  const copies = new Map<string, Uint8Array<ArrayBuffer>>();
  for (const { name, bytes, halves } of tensors) {
    const values = await engine.read(name, 0, halves ? 2 * bytes : bytes);
    copies.set(name, new Uint8Array(values.buffer));
  }
  return async (tensor, offsetBytes, bytes) => {
    const copy = copies.get(tensor);
    if (!copy) throw new StudioError('internal', `${tensor} was not copied before it was to be saved`);
    return copy.subarray(offsetBytes, offsetBytes + bytes);
  };
}
