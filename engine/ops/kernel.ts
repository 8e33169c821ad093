/**
 * A kernel is one dispatch: named operands, scalar parameters, plain TypeScript (the oracle) and WGSL. Shapes come in as
 * parameters, so a run needs few pipelines; what must be known to the compiler is part of the variant.
 */

/** `f16`: halves, two to a u32 (see half/half.ts). */
export type DType = 'f32' | 'u32' | 'f16';

/** Bytes of one element. */
export const dtypeBytes: Readonly<Record<DType, number>> = { f32: 4, u32: 4, f16: 2 };

export type Access = 'read' | 'write' | 'read_write';

export interface OperandSpec {
  readonly name: string;
  readonly dtype: DType;
  /** `write` means that the kernel writes the whole operand, or the whole of the part that its parameters select. */
  readonly access: Access;
}

export interface ParamSpec {
  readonly name: string;
  readonly type: 'u32' | 'f32';
}

export type Params = Readonly<Record<string, number>>;
export type View = Float32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>;

export interface Cost {
  readonly flops: number;
  /** Bytes that must cross the device's memory at least once. */
  readonly bytes: number;
}

export interface Kernel {
  readonly name: string;
  /** Bound in this order, each `var<storage, read_write>`; disjoint ranges (a tensor that is two operands is one binding). */
  readonly operands: readonly OperandSpec[];
  /** In this order in the uniform struct `p`, after `threads: u32`; at most 15, so that all fit 64 bytes. */
  readonly params: readonly ParamSpec[];
  /** Names of the parameters that are compiled in (as WGSL constants of the same name), not passed. */
  readonly constants: readonly string[];
  /** Invocations that the dispatch needs. 0: nothing to do. */
  threads(params: Params): number;
  cost(params: Params): Cost;
  /** Operand views are whole tensors. Exact same semantics as the WGSL, in float32 (Math.fround where it matters). */
  run(views: readonly View[], params: Params): void;
  /**
   * WGSL declaring `fn kernel(i: u32)`, called once for each i below `threads`, and any functions it needs. Operands are
   * module-scope arrays of their name, parameters are `p.name`, constants are `const name`. No barriers, no workgroup
   * memory: this is the variant that every adapter runs well enough.
   */
  readonly wgsl: string;
  /** A variant for real GPUs, if there is one; a software adapter runs those of them that are `barrierFree`. */
  readonly tiled?: TiledVariant;
  /** Which shapes are as fast in the same variant, where a tuner may choose; see `variantClass`. */
  readonly shapeClass?: (params: Params) => string;
  /** Operands stored as halves of which `cost` says what they would take as float32. */
  readonly halves?: readonly string[];
}

/** A variant with an entry point of its own, which may use workgroup memory and barriers. */
export interface TiledVariant {
  /** What it is called in labels; `tiled` if left out. */
  readonly name?: string;
  /** That it uses neither, so that a software adapter runs it as well as a GPU. */
  readonly barrierFree?: true;
  /** Operands that it takes as array<vec4f>. */
  readonly vectors?: readonly string[];
  /** Operands of halves that it takes as array<vec4u>, eight halves each. */
  readonly octets?: readonly string[];
  /** WGSL directives that the shader begins with: the extensions that it needs. */
  readonly directives?: string;
  readonly workgroupSize: readonly [number, number, number];
  /** Workgroups to dispatch, each dimension at most 65535. */
  workgroups(params: Params): readonly [number, number, number];
  /** WGSL declaring `fn tile(group: vec3u, local: vec3u, index: u32)`. */
  readonly wgsl: string;
  /** Whether this variant may be used for these parameters. */
  fits(params: Params): boolean;
  /** Variants for particular shapes, each of which this one fits as well: the first that fits runs in its place. */
  readonly special?: readonly TiledVariant[];
}

/** The variant of each class of shapes, by `variantClass`: what a tuner measured to be the fastest on an adapter. */
export type VariantChoices = Readonly<Record<string, string>>;

/** The class of a call among those that a tuner measures; null for a kernel that leaves nothing to choose. */
export function variantClass({ shapeClass, halves }: Kernel, params: Params): string | null {
  if (!shapeClass) return null;
  return `${halves?.length ? 'halves' : 'floats'} ${shapeClass(params)}`;
}

/**
 * The tiled variant that runs for these parameters: a function of them and of the choice that the schedule records, so that
 * every rank runs the same. A choice that does not fit them, or is of another version, is passed over.
 */
export function tiledVariant({ tiled }: Kernel, params: Params, chosen?: string): TiledVariant | undefined {
  if (!tiled?.fits(params)) return undefined;
  const fitting = fittingVariants(tiled, params);
  return fitting.find(({ name }) => name !== undefined && name === chosen) ?? fitting[0];
}

/** The variant that a software adapter runs for these parameters, if one is better there than the plain one. */
export function softwareVariant({ tiled }: Kernel, params: Params): TiledVariant | undefined {
  if (!tiled?.fits(params)) return undefined;
  return fittingVariants(tiled, params).find(({ barrierFree }) => barrierFree);
}

/** How a dispatch runs: plain, or in a tiled variant, of a name where it is not the first that fits. */
export interface RunsAs {
  readonly tiled: boolean;
  readonly variant?: string;
}

/** How a kernel runs for these parameters on an adapter for which nobody chose: on a software one without barriers. */
export function runsAs(kernel: Kernel, params: Params, software: boolean): RunsAs {
  if (!software) return { tiled: tiledVariant(kernel, params) !== undefined };
  const variant = softwareVariant(kernel, params);
  return { tiled: variant !== undefined, ...(variant?.name && { variant: variant.name }) };
}

/** The workgroups of a dispatch in each dimension. */
export function gridOf(kernel: Kernel, params: Params, { tiled, variant }: RunsAs): readonly [number, number, number] {
  const chosen = tiled ? tiledVariant(kernel, params, variant) : undefined;
  return chosen ? chosen.workgroups(params) : [...foldGrid(kernel.threads(params)), 1];
}

/** The variants that may run for these parameters; the one for all shapes last. */
function fittingVariants(tiled: TiledVariant, params: Params): TiledVariant[] {
  return [...(tiled.special ?? []), tiled].filter(
    (variant) =>
      variant.fits(params) && variant.workgroups(params).every((groups) => groups <= MAX_WORKGROUPS_PER_DIMENSION),
  );
}

/** Threads of a workgroup in the barrier-free variant. */
export const WORKGROUP_THREADS = 64;
/** WebGPU's limit in each dimension of a dispatch; larger grids are folded into the second dimension. */
export const MAX_WORKGROUPS_PER_DIMENSION = 65_535;

/** The grid of a barrier-free dispatch: `threads` invocations folded into at most two dimensions. */
export function foldGrid(threads: number): readonly [number, number] {
  const groups = Math.ceil(threads / WORKGROUP_THREADS);
  if (groups <= MAX_WORKGROUPS_PER_DIMENSION) return [groups, 1];
  const rows = Math.ceil(groups / MAX_WORKGROUPS_PER_DIMENSION);
  return [Math.ceil(groups / rows), rows];
}

/** Words that WGSL reserves and a parameter may be called by: in WGSL they carry an underscore (`p.self_`). */
const WGSL_RESERVED: ReadonlySet<string> = new Set(['self', 'target']);

/** The name of a parameter or operand in WGSL. */
export function wgslName(name: string): string {
  return WGSL_RESERVED.has(name) ? `${name}_` : name;
}

function constantsKey(kernel: Kernel, params: Params): string {
  return kernel.constants.map((name) => `${name}=${params[name]}`).join(',');
}

/** Two dispatches with the same key share a pipeline. */
export function pipelineKey(kernel: Kernel, params: Params, tiled: boolean, chosen?: string): string {
  const variant = tiled ? tiledVariant(kernel, params, chosen) : undefined;
  return [kernel.name, variant ? (variant.name ?? 'tiled') : 'plain', constantsKey(kernel, params)]
    .filter(Boolean)
    .join(' ');
}

/** The whole shader of a kernel: bindings, uniform parameters, constants, body and entry point. */
export function shaderSource(kernel: Kernel, params: Params, tiled: boolean, chosen?: string): string {
  const variant = tiled ? tiledVariant(kernel, params, chosen) : undefined;
  const elementOf = ({ name, dtype }: OperandSpec) => {
    if (variant?.octets?.includes(name)) return 'vec4u';
    const four = variant?.vectors?.includes(name);
    if (dtype === 'f16') return four ? 'vec2u' : 'u32';
    return four ? 'vec4f' : dtype;
  };
  const storage = kernel.operands.map(
    (o, i) => `@group(0) @binding(${i}) var<storage, read_write> ${wgslName(o.name)}: array<${elementOf(o)}>;`,
  );
  const passed = passedParams(kernel);
  const fields = ['threads: u32', ...passed.map((s) => `${wgslName(s.name)}: ${s.type}`)];
  const constants = kernel.params
    .filter((s) => kernel.constants.includes(s.name))
    .map((s) => `const ${wgslName(s.name)}: ${s.type} = ${s.type}(${params[s.name]});`);
  const head = [
    ...(variant?.directives ? [variant.directives] : []),
    ...storage,
    `struct Params { ${fields.join(', ')} }`,
    `@group(0) @binding(${kernel.operands.length}) var<uniform> p: Params;`,
    ...constants,
  ];
  if (variant) {
    return [
      ...head,
      variant.wgsl,
      `@compute @workgroup_size(${variant.workgroupSize.join(', ')})`,
      'fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u, @builtin(local_invocation_index) index: u32) {',
      '  tile(group, local, index);',
      '}',
    ].join('\n');
  }
  return [
    ...head,
    kernel.wgsl,
    `@compute @workgroup_size(${WORKGROUP_THREADS})`,
    'fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) local: u32) {',
    `  let i = (group.y * groups.x + group.x) * ${WORKGROUP_THREADS}u + local;`,
    '  if (i < p.threads) { kernel(i); }',
    '}',
  ].join('\n');
}

/** The parameters that travel in the uniform: all that are not compiled in. */
export function passedParams(kernel: Kernel): readonly ParamSpec[] {
  return kernel.params.filter((s) => !kernel.constants.includes(s.name));
}

/** Bytes of one dispatch's uniform parameters. */
export const PARAMS_BYTES = 64;

/** Writes the uniform of one dispatch at `byteOffset`. Throws RangeError when a parameter is missing or does not fit. */
export function writeParams(
  kernel: Kernel,
  params: Params,
  threads: number,
  target: DataView,
  byteOffset: number,
): void {
  const passed = passedParams(kernel);
  if ((passed.length + 1) * 4 > PARAMS_BYTES) throw new RangeError(`${kernel.name}: more than 15 parameters`);
  target.setUint32(byteOffset, threads, true);
  passed.forEach((spec, i) => {
    const value = params[spec.name];
    if (value === undefined) throw new RangeError(`${kernel.name}: parameter ${spec.name} is missing`);
    if (spec.type === 'f32') target.setFloat32(byteOffset + 4 + i * 4, value, true);
    else if (Number.isInteger(value) && value >= 0 && value <= 0xffffffff)
      target.setUint32(byteOffset + 4 + i * 4, value, true);
    else throw new RangeError(`${kernel.name}: parameter ${spec.name} is ${value}, not a u32`);
  });
}
