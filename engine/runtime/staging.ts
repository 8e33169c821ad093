/**
 * A staging buffer that the host maps. For uploads it is mapped whenever the device does not read it; for downloads it is
 * mapped while the host reads. Each slot is used by one lane, one step after the other.
 */
export class UploadSlot {
  private mapped: Promise<void>;

  constructor(private readonly buffer: GPUBuffer) {
    this.mapped = buffer.mapAsync(GPUMapMode.WRITE);
    this.mapped.catch(() => undefined);
  }

  /** The first `bytes` of the slot for the host to write, once the device has read what was there. */
  async open(bytes: number): Promise<Uint8Array<ArrayBuffer>> {
    await this.mapped;
    return new Uint8Array(this.buffer.getMappedRange(0, roundUp(bytes)));
  }

  /** Hands the slot to the device: commands may copy from it until `reopen`. */
  seal(): void {
    this.buffer.unmap();
  }

  /** After the commands were submitted: maps it again as soon as they are done. */
  reopen(): void {
    this.mapped = this.buffer.mapAsync(GPUMapMode.WRITE);
    this.mapped.catch(() => undefined);
  }
}

/** Reads the first `bytes` of a download buffer once the submitted copies into it are done. */
export async function readMapped<T>(
  buffer: GPUBuffer,
  bytes: number,
  read: (mapped: Uint8Array<ArrayBuffer>) => T | Promise<T>,
): Promise<T> {
  const size = roundUp(bytes);
  await buffer.mapAsync(GPUMapMode.READ, 0, size);
  try {
    return await read(new Uint8Array(buffer.getMappedRange(0, size), 0, bytes));
  } finally {
    buffer.unmap();
  }
}

/** mapAsync and getMappedRange take multiples of 4; slots are whole multiples of 16. */
function roundUp(bytes: number): number {
  return Math.ceil(bytes / 4) * 4;
}
