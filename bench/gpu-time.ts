/** Times on the device's own clock. */
export class GpuTime {
  private readonly queries: GPUQuerySet;
  private readonly resolved: GPUBuffer;
  private readonly readback: GPUBuffer;

  constructor(private readonly device: GPUDevice) {
    this.queries = device.createQuerySet({ type: 'timestamp', count: 2 });
    this.resolved = device.createBuffer({ size: 16, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC });
    this.readback = device.createBuffer({ size: 16, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  }

  /** Milliseconds that the device needs for one pass of what `encode` puts into it. */
  async ofPass(encode: (pass: GPUComputePassEncoder) => void): Promise<number> {
    const encoder = this.device.createCommandEncoder();
    const pass = encoder.beginComputePass({
      timestampWrites: { querySet: this.queries, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 },
    });
    encode(pass);
    pass.end();
    encoder.resolveQuerySet(this.queries, 0, 2, this.resolved, 0);
    encoder.copyBufferToBuffer(this.resolved, 0, this.readback, 0, 16);
    this.device.queue.submit([encoder.finish()]);
    await this.readback.mapAsync(GPUMapMode.READ);
    const [begin, end] = new BigUint64Array(this.readback.getMappedRange());
    const ms = Number(end - begin) / 1e6;
    this.readback.unmap();
    return ms;
  }
}
