import type { Mailbox } from '../comm/mailbox.ts';
import { StudioError } from '../errors.ts';
import type { ExecutableRun, ExecutableStep } from '../schedule/compile.ts';
import type { Range, Tensor } from '../schedule/schedule.ts';

/**
 * The tensors that a rank keeps on the host: memory of its own, or its mailbox region where peers read it. A region may be
 * written once the peers have read what it held; it is published by the schedule's `announce`.
 */
export class HostTensors {
  private readonly own = new Map<string, Uint8Array<ArrayBuffer>>();
  /** Regions that are being written, and since when they may be. */
  private readonly writing = new Map<number, Promise<void>>();

  private readonly regionBytes: number;

  /** `withMapped`: whether those that a device keeps in mapped buffers are here as well. */
  constructor(
    run: ExecutableRun,
    private readonly mailbox: Mailbox,
    withMapped: boolean,
  ) {
    this.regionBytes = run.regions.reduce((sum, _, region) => sum + mailbox.outbox(region).byteLength, 0);
    for (const { schedule } of run.steps)
      for (const t of schedule.tensors)
        if (t.space === 'host' && t.region === undefined && (withMapped || !t.mapped) && !this.own.has(t.name))
          this.own.set(t.name, new Uint8Array(t.bytes));
  }

  /** Bytes of host memory that are held: these tensors, and the schedule's mailbox regions. */
  bytes(): number {
    return [...this.own.values()].reduce((sum, { byteLength }) => sum + byteLength, this.regionBytes);
  }

  /** A range's bytes, for reading. */
  read(step: ExecutableStep, range: Range): Uint8Array<ArrayBuffer> {
    const tensor = step.schedule.tensors[range.tensor];
    return this.all(tensor).subarray(range.offsetBytes, range.offsetBytes + range.bytes);
  }

  /** A range's bytes, for writing; waits until nobody reads what they hold. */
  async write(step: ExecutableStep, range: Range): Promise<Uint8Array<ArrayBuffer>> {
    const { region } = step.schedule.tensors[range.tensor];
    if (region !== undefined) {
      const may = this.writing.get(region) ?? this.mailbox.beginWrite(region);
      this.writing.set(region, may);
      await may;
    }
    return this.read(step, range);
  }

  /** Lets the peers read the region: what was written, or once more what they read before. */
  async announce(region: number): Promise<void> {
    if (!this.writing.delete(region)) await this.mailbox.beginWrite(region);
    this.mailbox.publish(region);
  }

  private all(tensor: Tensor): Uint8Array<ArrayBuffer> {
    const bytes = tensor.region === undefined ? this.own.get(tensor.name) : this.mailbox.outbox(tensor.region);
    if (!bytes) throw new StudioError('internal', `${tensor.name} is not kept on the host`);
    return bytes;
  }
}
