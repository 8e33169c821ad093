import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { openAdapter } from '../engine/node/adapters.ts';
import { type AttentionShape, attend } from '../engine/ops/attention/attend.ts';
import { attentionPairs } from '../engine/ops/attention/attention-params.ts';
import { copy } from '../engine/ops/copy/copy.ts';
import { bytesOf, type Call, Graph } from '../engine/ops/graph.ts';
import { foldGrid, type Kernel, PARAMS_BYTES, tiledVariant, writeParams } from '../engine/ops/kernel.ts';
import { project } from '../engine/ops/linear/project.ts';
import { matmulNT } from '../engine/ops/matmul/matmul.ts';
import { type OpenDevice, openDevice } from '../engine/runtime/device.ts';
import { GpuTime } from './gpu-time.ts';

/** The guide's model at one short sequence and at eight long ones, and GPT-2's blocks. */
const SHAPES: readonly AttentionShape[] = [
  { batch: 1, tokens: 35, heads: 64, headDim: 16, causal: false },
  { batch: 1, tokens: 35, heads: 64, headDim: 16, causal: true },
  { batch: 8, tokens: 512, heads: 64, headDim: 16, causal: false },
  { batch: 8, tokens: 512, heads: 64, headDim: 16, causal: true },
  { batch: 4, tokens: 1024, heads: 12, headDim: 64, causal: true },
];
/** For about how long each figure keeps the device busy. */
const MEASURE_MS = 20;
const TORCH_BOUND_MS = 120_000;

/**
 * Attention, forward and backward, as the engine's graph has it, in milliseconds beside a floor: the longer of the bytes that
 * it must move over the rate of a copy, and its products over the rate of a large product plus its exponentials over theirs,
 * all measured here; beside torch where python3 has it and a GPU. Arguments: --adapter NAME, --dropout P (0).
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = (name: string, otherwise: string) => args[args.indexOf(`--${name}`) + 1 || args.length] ?? otherwise;
  const { adapter, entry } = await openAdapter(option('adapter', 'auto'));
  const open = await openDevice(adapter);
  const dropout = Number(option('dropout', '0'));
  const shapes = entry.software ? SHAPES.map((s) => ({ ...s, batch: 1, tokens: Math.min(s.tokens, 64) })) : SHAPES;
  const clock = new Timer(open, entry.software);
  const rates = await measureRates(clock, entry.software ? 256 : 4096);
  console.log(
    `${entry.name}: copies ${(rates.bytes / 1e9).toPrecision(3)} GB/s, products ${(rates.flops / 1e12).toPrecision(3)} TFLOP/s, ` +
      `exponentials ${(rates.exps / 1e12).toPrecision(3)} T/s`,
  );
  const torch = entry.software ? null : await torchTimes(shapes, dropout);
  console.log(`${'shape'.padEnd(30)} pass      ms    floor  of it   torch ms  ratio`);
  for (const [i, shape] of shapes.entries()) {
    const { batch, tokens, heads, headDim, causal } = shape;
    const calls = attentionCalls(shape, dropout);
    const pairs = attentionPairs(batch, tokens, heads, causal ? 1 : 0);
    const elements = batch * tokens * heads * headDim;
    for (const [phase, products, arrays] of [
      ['forward', 2, 4],
      ['backward', 5, 8],
    ] as const) {
      const own = calls.filter((call) => call.phase === phase);
      const ms = await clock.msOf(own);
      const arithmetic = (2 * products * headDim * pairs) / rates.flops + pairs / rates.exps;
      const floor = 1000 * Math.max((4 * arrays * elements) / rates.bytes, arithmetic);
      const theirs = torch?.[i][phase === 'forward' ? 0 : 1];
      const name = `${batch} x ${tokens}, ${heads} heads of ${headDim}${causal ? ', causal' : ''}`;
      const beside =
        theirs === undefined ? '' : `${theirs.toFixed(4).padStart(10)} ${(ms / theirs).toFixed(2).padStart(6)}`;
      console.log(
        `${name.padEnd(30)} ${phase.padEnd(8)} ${ms.toFixed(4).padStart(8)} ${floor.toFixed(4).padStart(8)} ` +
          `${(100 * (floor / ms)).toFixed(0).padStart(4)} % ${beside}  ${own.map((call) => variantOf(call, entry.software)).join(', ')}`,
      );
    }
  }
  open.close();
}

/** What the graph emits for one attention, its own projection and seed left out. */
function attentionCalls(shape: AttentionShape, dropout: number): Call[] {
  const g = new Graph();
  const D = shape.heads * shape.headDim;
  const x = g.constant('x', [shape.batch * shape.tokens, 1], new Float32Array(shape.batch * shape.tokens));
  const qkv = project(g, x, [{ module: '', weight: g.parameter('w', [3 * D, 1]) }], { name: 'qkv' });
  const out = attend(g, qkv, shape, { dropout, seed: 1, site: 0, rank: 0 }, 'heads');
  g.shareGradient(out, g.activation('seed', out.shape));
  g.backward();
  return g.calls.filter(({ kernel }) => kernel.name.startsWith('attention'));
}

function variantOf({ kernel, params }: Call, software: boolean): string {
  return `${kernel.name} ${(software ? undefined : tiledVariant(kernel, params))?.name ?? 'plain'}`;
}

interface Rates {
  readonly bytes: number;
  readonly flops: number;
  readonly exps: number;
}

/** Exponentials of each thread, in four chains. */
const EXPS = 1024;
const exponentials: Kernel = {
  name: 'exponentials',
  operands: [{ name: 'out', dtype: 'f32', access: 'read_write' }],
  params: [{ name: 'n', type: 'u32' }],
  constants: [],
  threads: ({ n }) => n,
  cost: ({ n }) => ({ flops: 0, bytes: 8 * n }),
  run: () => undefined,
  wgsl: `
fn kernel(i: u32) {
  var v = vec4f(out[i], 0.1, 0.2, 0.3);
  for (var k = 0u; k < ${EXPS / 4}u; k++) { v = exp2(-v); }
  out[i] = v.x + v.y + v.z + v.w;
}`,
};

async function measureRates(clock: Timer, size: number): Promise<Rates> {
  const n = size * size;
  const g = new Graph();
  const [a, b, c] = ['a', 'b', 'c'].map((name) => g.workspace(name, [size, size]));
  const call = (kernel: Kernel, operands: Call['operands'], params: Call['params']): Call[] => [
    { kernel, operands, params, module: '', phase: 'forward', microBatch: 0 },
  ];
  const strides = { aOffset: 0, lda: size, bOffset: 0, ldb: size, cOffset: 0, ldc: size, accumulate: 0 };
  const seconds = async (calls: Call[]) => (await clock.msOf(calls)) / 1000;
  return {
    bytes: (8 * n) / (await seconds(call(copy, [a, b], { n }))),
    flops: (2 * size ** 3) / (await seconds(call(matmulNT, [a, b, c], { M: size, N: size, K: size, ...strides }))),
    exps: ((n / 16) * EXPS) / (await seconds(call(exponentials, [a], { n: n / 16 }))),
  };
}

/** Runs calls in turn over buffers of their own. */
class Timer {
  private readonly clock: GpuTime;

  constructor(
    private readonly open: OpenDevice,
    private readonly software: boolean,
  ) {
    this.clock = new GpuTime(open.device);
  }

  /** Milliseconds of one round of these calls on the device's clock, the quickest of three measurements. */
  async msOf(calls: readonly Call[]): Promise<number> {
    const { device, kernels } = this.open;
    const buffers = new Map<number, GPUBuffer>();
    const bufferOf = (value: Call['operands'][number]) => {
      const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST;
      const known = buffers.get(value.id) ?? device.createBuffer({ size: Math.max(64, bytesOf(value)), usage });
      buffers.set(value.id, known);
      return known;
    };
    const uniforms: GPUBuffer[] = [];
    const ready: { pipeline: GPUComputePipeline; group: GPUBindGroup; grid: readonly [number, number, number] }[] = [];
    for (const { kernel, operands, params } of calls) {
      const variant = this.software ? undefined : tiledVariant(kernel, params);
      const threads = kernel.threads(params);
      const bytes = new ArrayBuffer(PARAMS_BYTES);
      writeParams(kernel, params, threads, new DataView(bytes), 0);
      const uniform = device.createBuffer({
        size: PARAMS_BYTES,
        usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST,
      });
      uniforms.push(uniform);
      device.queue.writeBuffer(uniform, 0, bytes);
      const group = device.createBindGroup({
        layout: kernels.groupLayout(operands.length),
        entries: [...operands.map(bufferOf), uniform].map((buffer, binding) => ({ binding, resource: { buffer } })),
      });
      const pipeline = await kernels.pipeline({ kernel, params, operands: [], tiled: variant !== undefined });
      ready.push({ pipeline, group, grid: variant?.workgroups(params) ?? [...foldGrid(threads), 1] });
    }
    const round = (times: number) =>
      this.open.guard(
        this.clock.ofPass((pass) => {
          for (let i = 0; i < times; i++)
            for (const { pipeline, group, grid } of ready) {
              pass.setPipeline(pipeline);
              pass.setBindGroup(0, group);
              pass.dispatchWorkgroups(...grid);
            }
        }),
      );
    await round(1);
    const times = Math.max(1, Math.min(2048, Math.ceil(MEASURE_MS / Math.max(await round(1), 0.005))));
    const ms = Math.min(await round(times), await round(times), await round(times)) / times;
    for (const buffer of [...buffers.values(), ...uniforms]) buffer.destroy();
    return ms;
  }
}

/** torch's scaled_dot_product_attention over the same shapes in float32 without TF32: [forward, backward] in milliseconds. */
async function torchTimes(shapes: readonly AttentionShape[], dropout: number): Promise<[number, number][] | null> {
  const script = `
import json, sys, torch, torch.nn.functional as F
torch.backends.cuda.matmul.allow_tf32 = False
out = []
for s in json.loads(sys.argv[1]):
    B, T, H, D = s["batch"], s["tokens"], s["heads"], s["headDim"]
    qkv = torch.randn(B, T, 3, H, D, device="cuda").permute(2, 0, 3, 1, 4).requires_grad_()
    seed = torch.randn(B, H, T, D, device="cuda")
    def step():
        e = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        q, k, v = qkv[0], qkv[1], qkv[2]
        e[0].record(); y = F.scaled_dot_product_attention(q, k, v, dropout_p=float(sys.argv[2]), is_causal=s["causal"])
        e[1].record(); torch.autograd.grad(y, (q, k, v), seed); e[2].record(); torch.cuda.synchronize()
        return e[0].elapsed_time(e[1]), e[1].elapsed_time(e[2])
    times = [step() for _ in range(12)][2:]
    out.append([min(t[i] for t in times) for i in (0, 1)])
print("RESULT", json.dumps(out))`;
  try {
    const { stdout } = await promisify(execFile)('python3', ['-c', script, JSON.stringify(shapes), String(dropout)], {
      timeout: TORCH_BOUND_MS,
    });
    return JSON.parse(stdout.slice(stdout.indexOf('RESULT ') + 7));
  } catch {
    console.log('no torch with a GPU here');
    return null;
  }
}
