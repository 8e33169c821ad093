/** The memory of so many bytes that begins where a mapped range does: for hosts where mapping it all as a range is costly. */
export type MappedView = (start: ArrayBuffer, bytes: number) => Uint8Array<ArrayBuffer>;

/** What is mapped as a range where the rest is seen through a MappedView. */
const START_BYTES = 16;

/**
 * A staging buffer that the host maps. For uploads it is mapped whenever the device does not read it; for downloads it is
 * mapped while the host reads.
 */
export class UploadSlot {
  /** Resolves when the slot is mapped and its last user is done with it. */
  private free: Promise<void>;
  /** For each user that has not reopened it yet, in turn: lets the next one in. */
  private readonly letIn: ((mapped: Promise<void>) => void)[] = [];

  constructor(
    private readonly buffer: GPUBuffer,
    private readonly view?: MappedView,
  ) {
    this.free = buffer.mapAsync(GPUMapMode.WRITE);
    this.free.catch(() => undefined);
  }

  /** The first `bytes` of the slot for the host to write, once the device has read what was there. Users take turns. */
  async open(bytes: number): Promise<Uint8Array<ArrayBuffer>> {
    const { free } = this;
    this.free = new Promise((resolve) => this.letIn.push(resolve));
    this.free.catch(() => undefined);
    await free;
    return mappedBytes(this.buffer, bytes, this.view);
  }

  /** Hands the slot to the device: commands may copy from it until `reopen`. */
  seal(): void {
    this.buffer.unmap();
  }

  /** After the commands were submitted: maps it again as soon as they are done. */
  reopen(): void {
    const mapped = this.buffer.mapAsync(GPUMapMode.WRITE);
    mapped.catch(() => undefined);
    this.letIn.shift()?.(mapped);
  }
}

/** A staging buffer that the device fills and the host reads, by one copy at a time. */
export class DownloadSlot {
  private last: Promise<unknown> = Promise.resolve();

  /** Resolves when what was there has been read. */
  free(): Promise<unknown> {
    return this.last;
  }

  /** Holds the slot until `done` settles. */
  hold(done: Promise<void>): void {
    this.last = done.catch(() => undefined);
  }
}

/** Reads the first `bytes` of a download buffer once the submitted copies into it are done. */
export async function readMapped<T>(
  buffer: GPUBuffer,
  bytes: number,
  read: (mapped: Uint8Array<ArrayBuffer>) => T | Promise<T>,
  view?: MappedView,
): Promise<T> {
  await buffer.mapAsync(GPUMapMode.READ, 0, Math.max(START_BYTES, roundUp(bytes)));
  try {
    return await read(mappedBytes(buffer, bytes, view));
  } finally {
    buffer.unmap();
  }
}

/** The first `bytes` of a mapped buffer. */
export function mappedBytes(buffer: GPUBuffer, bytes: number, view?: MappedView): Uint8Array<ArrayBuffer> {
  if (view) return view(buffer.getMappedRange(0, START_BYTES), bytes);
  return new Uint8Array(buffer.getMappedRange(0, roundUp(bytes)), 0, bytes);
}

/** mapAsync and getMappedRange take multiples of 4; slots are whole multiples of 16. */
function roundUp(bytes: number): number {
  return Math.ceil(bytes / 4) * 4;
}
