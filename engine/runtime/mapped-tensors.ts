import { StudioError } from '../errors.ts';
import type { ExecutableRun, ExecutableStep } from '../schedule/compile.ts';
import type { HostCopy, Range } from '../schedule/schedule.ts';
import type { BufferLedger } from './buffer-ledger.ts';
import { type MappedView, mappedBytes } from './staging.ts';

/**
 * A buffer in the host's memory that the device fills, each time all of it, and that is mapped at all other times. What the
 * host writes to its bytes stays until then.
 */
export class MappedBuffer {
  private mapped: Promise<Uint8Array<ArrayBuffer>>;

  constructor(
    private readonly buffer: GPUBuffer,
    private readonly view?: MappedView,
  ) {
    this.mapped = this.map();
  }

  /** Its bytes, once the last copy into it is done. Throws StudioError `device-lost` when they are gone with the device. */
  async bytes(): Promise<Uint8Array<ArrayBuffer>> {
    for (;;) {
      const { mapped } = this;
      const bytes = await mapped;
      // Filled again meanwhile: those are no longer its bytes.
      if (mapped !== this.mapped) continue;
      if (this.buffer.mapState !== 'mapped')
        throw new StudioError('device-lost', 'what the host keeps in mapped buffers is gone with the device');
      return bytes;
    }
  }

  /** `submit` submits commands that copy to all of the buffer. It must be mapped and nobody may read its bytes any more. */
  fill(submit: (buffer: GPUBuffer) => void): void {
    this.buffer.unmap();
    submit(this.buffer);
    this.mapped = this.map();
  }

  private map(): Promise<Uint8Array<ArrayBuffer>> {
    const { buffer, view } = this;
    const mapped = buffer.mapAsync(GPUMapMode.READ).then(() => mappedBytes(buffer, buffer.size, view));
    mapped.catch(() => undefined);
    return mapped;
  }
}

/** A part of a tensor, and where it lies. */
interface Piece {
  readonly offsetBytes: number;
  readonly bytes: number;
  readonly buffer: MappedBuffer;
  readonly at: number;
}

/**
 * The host tensors that no peer reads, where the device's copies put them: a `keep` is the copy by the device alone, and a
 * fetch copies straight from here. A buffer holds what one `keep` copies.
 */
export class MappedTensors {
  private readonly buffers = new Map<string, MappedBuffer>();
  private readonly pieces = new Map<string, Piece[]>();

  private constructor() {}

  /** Makes the buffers, filled with zeros. Throws StudioError `out-of-memory`; `invalid-schedule` for tensors that are not cut alike. */
  static async create(run: ExecutableRun, ledger: BufferLedger, view?: MappedView): Promise<MappedTensors> {
    const tensors = new MappedTensors();
    for (const step of run.steps)
      for (const { action, unit } of step.schedule.steps)
        if (action.type === 'keep')
          await tensors.add(step, action.parts, `what the host keeps of ${unit}`, ledger, view);
    for (const { schedule } of run.steps)
      for (const { mapped, name, bytes } of schedule.tensors) if (mapped) tensors.checkPieces(name, bytes);
    return tensors;
  }

  /** The buffer that these parts of a `keep` are copied to, one after the other. */
  bufferOf(step: ExecutableStep, parts: readonly HostCopy[]): MappedBuffer {
    return this.buffers.get(cutOf(step, parts))!;
  }

  /** A range's bytes, piece after piece, to read or to write. */
  bytes(step: ExecutableStep, range: Range): Promise<Uint8Array<ArrayBuffer>[]> {
    const end = range.offsetBytes + range.bytes;
    const pieces = this.pieces.get(step.schedule.tensors[range.tensor].name)!;
    const met = pieces.filter(({ offsetBytes, bytes }) => offsetBytes < end && range.offsetBytes < offsetBytes + bytes);
    return Promise.all(
      met.map(async ({ offsetBytes, bytes, buffer, at }) => {
        const from = Math.max(range.offsetBytes, offsetBytes);
        const to = Math.min(end, offsetBytes + bytes);
        return (await buffer.bytes()).subarray(at + from - offsetBytes, at + to - offsetBytes);
      }),
    );
  }

  private async add(
    step: ExecutableStep,
    parts: readonly HostCopy[],
    label: string,
    ledger: BufferLedger,
    view: MappedView | undefined,
  ): Promise<void> {
    const cut = cutOf(step, parts);
    if (this.buffers.has(cut)) return;
    const bytes = parts.reduce((sum, { host }) => sum + host.bytes, 0);
    const buffer = new MappedBuffer(await ledger.createOnHost(label, bytes), view);
    this.buffers.set(cut, buffer);
    let at = 0;
    for (const { host } of parts) {
      const { name } = step.schedule.tensors[host.tensor];
      const pieces = this.pieces.get(name) ?? [];
      this.pieces.set(name, pieces);
      pieces.push({ offsetBytes: host.offsetBytes, bytes: host.bytes, buffer, at });
      at += host.bytes;
    }
  }

  private checkPieces(name: string, bytes: number): void {
    const pieces = (this.pieces.get(name) ?? []).sort((a, b) => a.offsetBytes - b.offsetBytes);
    let end = 0;
    const alike = pieces.every((piece) => {
      const follows = piece.offsetBytes === end;
      end += piece.bytes;
      return follows;
    });
    if (!alike || end !== bytes)
      throw new StudioError('invalid-schedule', `${name} is not kept in the same whole parts by all steps`);
  }
}

/** Which parts of which tensors: batch shapes share them by name. */
function cutOf({ schedule }: ExecutableStep, parts: readonly HostCopy[]): string {
  return parts.map(({ host }) => `${schedule.tensors[host.tensor].name} ${host.offsetBytes} ${host.bytes}`).join('\n');
}
