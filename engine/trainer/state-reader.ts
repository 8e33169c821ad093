import { StudioError } from '../errors.ts';
import type { RankEngine } from '../schedule/rank-engine.ts';
import type { Tensor } from '../schedule/schedule.ts';

/** Bytes [offset, offset + bytes) of a state tensor, as float32 whatever it is stored as, that a rank keeps, as fresh bytes or a view that stays as it is. */
export type StateReader = (tensor: string, offsetBytes: number, bytes: number) => Promise<Uint8Array<ArrayBuffer>>;

/** Reads straight from where the rank keeps its state; it must not train meanwhile. */
export function engineReader(engine: RankEngine): StateReader {
  return async (tensor, offsetBytes, bytes) => new Uint8Array((await engine.read(tensor, offsetBytes, bytes)).buffer);
}

/** Bytes of a copy: of float32 elements, whatever they are stored as. */
export const copyBytes = ({ bytes, halves }: Tensor): number => (halves ? 2 * bytes : bytes);

/** Copies these tensors to host memory, so that the rank may train on while they are written. */
export async function copiedReader(engine: RankEngine, tensors: Iterable<Tensor>): Promise<StateReader> {
  const copies = new Map<string, Uint8Array<ArrayBuffer>>();
  for (const tensor of tensors) {
    const values = await engine.read(tensor.name, 0, copyBytes(tensor));
    copies.set(tensor.name, new Uint8Array(values.buffer));
  }
  return async (tensor, offsetBytes, bytes) => {
    const copy = copies.get(tensor);
    if (!copy) throw new StudioError('internal', `${tensor} was not copied before it was to be saved`);
    return copy.subarray(offsetBytes, offsetBytes + bytes);
  };
}
