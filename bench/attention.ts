import { type AttentionShape, attend } from '../engine/ops/attention/attend.ts';
import { attentionPairs } from '../engine/ops/attention/attention-params.ts';
import { type Call, Graph } from '../engine/ops/graph.ts';
import { type Kernel, tiledVariant } from '../engine/ops/kernel.ts';
import { project } from '../engine/ops/linear/project.ts';
import { BenchDevice } from './bench-device.ts';
import { ratioTo } from './floor.ts';
import { timesOf } from './measure.ts';
import { optionsOf } from './options.ts';
import { measureRates } from './rates.ts';
import { askBeside, type TorchParts, torchBeside } from './torch-parts.ts';

/** The guide's model at one short sequence and at eight long ones, and GPT-2's blocks. */
const SHAPES: readonly AttentionShape[] = [
  { batch: 1, tokens: 35, heads: 64, headDim: 16, causal: false },
  { batch: 1, tokens: 35, heads: 64, headDim: 16, causal: true },
  { batch: 8, tokens: 512, heads: 64, headDim: 16, causal: false },
  { batch: 8, tokens: 512, heads: 64, headDim: 16, causal: true },
  { batch: 4, tokens: 1024, heads: 12, headDim: 64, causal: true },
];
const ROUNDS = 5;

/**
 * Attention, forward and backward, as the engine's graph has it, in milliseconds beside a floor: the longer of the bytes that
 * it must move, and its products plus its exponentials, each by its rate measured here; beside torch in turns, backward as
 * what both take without forward. Arguments: --adapter NAME, --dropout P (0).
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = optionsOf(args);
  const device = await BenchDevice.open(option('adapter', 'auto'));
  const dropout = Number(option('dropout', '0'));
  const { software } = device;
  const torch = await torchBeside({ gpu: !software });
  const rates = await measureRates(device, torch);
  const expsPerSecond = await exponentialRate(device);
  console.log(`  exponentials ${(expsPerSecond / 1e12).toPrecision(3)} T/s`);
  console.log(`${'shape'.padEnd(30)} pass      ms    floor  of it   torch ms  ratio`);
  for (const shape of software ? SHAPES.map((s) => ({ ...s, batch: 1, tokens: Math.min(s.tokens, 64) })) : SHAPES) {
    const { batch, tokens, heads, headDim, causal } = shape;
    const calls = attentionCalls(shape, dropout);
    const pairs = attentionPairs(batch, tokens, heads, causal ? 1 : 0);
    const elements = batch * tokens * heads * headDim;
    const passes = await measurePasses(device, torch, calls, { ...shape, dropout });
    for (const [phase, products, arrays] of [
      ['forward', 2, 4],
      ['backward', 5, 8],
    ] as const) {
      const { ms, torchMs } = passes[phase];
      const arithmetic = (2 * products * headDim * pairs) / rates.flopsPerSecond + pairs / expsPerSecond;
      const floor = 1000 * Math.max((4 * arrays * elements) / rates.bytesPerSecond, arithmetic);
      const name = `${batch} x ${tokens}, ${heads} heads of ${headDim}${causal ? ', causal' : ''}`;
      const beside = torchMs === null ? '' : `${torchMs.toFixed(4).padStart(10)} ${ratioTo(torchMs, ms).padStart(6)}`;
      const variants = calls.filter((call) => call.phase === phase).map((call) => variantOf(call, software));
      console.log(
        `${name.padEnd(30)} ${phase.padEnd(8)} ${ms.toFixed(4).padStart(8)} ${floor.toFixed(4).padStart(8)} ` +
          `${(100 * (floor / ms)).toFixed(0).padStart(4)} % ${beside}  ${variants.join(', ')}`,
      );
    }
  }
  torch?.close();
  device.close();
}

interface Pass {
  readonly ms: number;
  readonly torchMs: number | null;
}

/** Medians of rounds in turns. */
async function measurePasses(
  device: BenchDevice,
  torch: TorchParts | null,
  calls: readonly Call[],
  shape: AttentionShape & { readonly dropout: number },
): Promise<Readonly<Record<Call['phase'], Pass>>> {
  const own = { forward: [] as number[], backward: [] as number[] };
  const theirs = { forward: [] as number[], both: [] as number[] };
  const ready = [];
  for (const phase of ['forward', 'backward'] as const) {
    const { encode, destroy } = await device.readyCalls(calls.filter((call) => call.phase === phase));
    ready.push({ phase, encode, destroy, times: await device.timesOf(encode) });
  }
  for (let round = 0; round < ROUNDS; round++) {
    for (const backward of [false, true]) {
      const answer = await askBeside(torch, { ask: 'attention', ...shape, backward });
      theirs[backward ? 'both' : 'forward'].push(...(answer?.ms ?? []));
    }
    for (const { phase, encode, times } of ready) {
      // The device's clock falls while torch is asked.
      await device.warm(() => device.msOf(encode, times), round === 0 ? undefined : 0);
      own[phase].push(await device.msOf(encode, times));
    }
  }
  for (const { destroy } of ready) destroy();
  await torch?.forget();
  const median = (times: readonly number[]) => (times.length ? timesOf(times).medianMs : null);
  const [forward, both] = [median(theirs.forward), median(theirs.both)];
  return {
    forward: { ms: timesOf(own.forward).medianMs, torchMs: forward },
    backward: {
      ms: timesOf(own.backward).medianMs,
      torchMs: both === null || forward === null ? null : both - forward,
    },
  };
}

/** What the graph emits for one attention, its own projection and seed left out. */
function attentionCalls(shape: AttentionShape, dropout: number): Call[] {
  const g = new Graph();
  const D = shape.heads * shape.headDim;
  const x = g.constant('x', [shape.batch * shape.tokens, 1], new Float32Array(shape.batch * shape.tokens));
  const qkv = project(g, x, [{ module: '', weight: g.parameter('w', [3 * D, 1]) }], { name: 'qkv' });
  const out = attend(g, qkv, shape, { dropout, maskKey0: 1, maskKey1: 0 }, 'heads');
  g.shareGradient(out, g.activation('seed', out.shape));
  g.backward();
  return g.calls.filter(({ kernel }) => kernel.name.startsWith('attention'));
}

function variantOf({ kernel, params }: Call, software: boolean): string {
  return `${kernel.name} ${(software ? undefined : tiledVariant(kernel, params))?.name ?? 'plain'}`;
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

async function exponentialRate(device: BenchDevice): Promise<number> {
  const n = device.software ? 4096 : 2 ** 20;
  const operands = [new Graph().workspace('out', [n])];
  const call: Call = {
    ...{ kernel: exponentials, operands, params: { n } },
    ...{ module: '', phase: 'forward', microBatch: 0 },
  };
  const { encode, destroy } = await device.readyCalls([call]);
  const times = await device.timesOf(encode);
  await device.warm(() => device.msOf(encode, times));
  let ms = Number.POSITIVE_INFINITY;
  for (let round = 0; round < ROUNDS; round++) ms = Math.min(ms, await device.msOf(encode, times));
  destroy();
  return (1000 * n * EXPS) / ms;
}
