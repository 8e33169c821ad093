import { StudioError } from '../errors.ts';
import { pipelineKey, shaderSource } from '../ops/kernel.ts';
import type { Dispatch } from '../schedule/schedule.ts';

/** Pipelines of one device, one for each kernel, variant and set of constants. Ranks that share a device share them. */
export class KernelCache {
  private readonly pipelines = new Map<string, Promise<GPUComputePipeline>>();
  private readonly layouts = new Map<number, { group: GPUBindGroupLayout; pipeline: GPUPipelineLayout }>();
  private sealed = false;

  constructor(private readonly device: GPUDevice) {}

  get size(): number {
    return this.pipelines.size;
  }

  /** From here on no pipeline may be made: a step of training makes none. */
  seal(): void {
    this.sealed = true;
  }

  /** The pipeline of a dispatch. Throws StudioError `internal` naming the kernel when its shader does not compile. */
  pipeline({ kernel, params, tiled, variant }: Dispatch): Promise<GPUComputePipeline> {
    const key = pipelineKey(kernel, params, tiled, variant);
    const known = this.pipelines.get(key);
    if (known) return known;
    if (this.sealed) throw new StudioError('internal', `pipeline ${key} was made after step 0 began`);
    const module = this.device.createShaderModule({ label: key, code: shaderSource(kernel, params, tiled, variant) });
    const layout = this.layoutOf(kernel.operands.length).pipeline;
    const made = this.device
      .createComputePipelineAsync({ label: key, layout, compute: { module, entryPoint: 'main' } })
      .catch((cause) => {
        throw new StudioError(
          'internal',
          `kernel ${key} does not compile on this device: ${cause.message}`,
          {},
          { cause },
        );
      });
    this.pipelines.set(key, made);
    return made;
  }

  /** The bind group layout of a kernel with that many operands. */
  groupLayout(operands: number): GPUBindGroupLayout {
    return this.layoutOf(operands).group;
  }

  private layoutOf(operands: number) {
    let layout = this.layouts.get(operands);
    if (!layout) {
      const visibility = GPUShaderStage.COMPUTE;
      const storage = Array.from({ length: operands }, (_, binding) => ({
        binding,
        visibility,
        buffer: { type: 'storage' as const },
      }));
      const uniform = { binding: operands, visibility, buffer: { type: 'uniform' as const } };
      const group = this.device.createBindGroupLayout({ entries: [...storage, uniform] });
      layout = { group, pipeline: this.device.createPipelineLayout({ bindGroupLayouts: [group] }) };
      this.layouts.set(operands, layout);
    }
    return layout;
  }
}
