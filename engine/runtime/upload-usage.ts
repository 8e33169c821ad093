/**
 * What buffers for uploads are made for: copies, and where nothing validates it kernels too. A buffer for kernels Dawn puts
 * into the device's memory if the host sees that; any other that the host writes, into the larger memory, which is the host's on
 * a machine that has more. What the host's threads store on the device goes past what the device copies to the host; from host
 * memory the device would copy itself, in turn with those.
 */
export async function uploadUsage(device: GPUDevice): Promise<GPUBufferUsageFlags> {
  const plain = GPUBufferUsage.MAP_WRITE | GPUBufferUsage.COPY_SRC;
  const usage = plain | GPUBufferUsage.STORAGE;
  device.pushErrorScope('validation');
  device.createBuffer({ size: 16, usage }).destroy();
  return (await device.popErrorScope()) ? plain : usage;
}
