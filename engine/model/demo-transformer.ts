import { attend, projectQkv } from '../ops/attention/attend.ts';
import { headLoss } from '../ops/cross-entropy/head-loss.ts';
import { drop } from '../ops/dropout/drop.ts';
import { embed } from '../ops/embedding/embed.ts';
import type { Graph, Value } from '../ops/graph.ts';
import { addNormalize, normalize } from '../ops/layer-norm/normalize.ts';
import { type LinearOptions, linear } from '../ops/linear/linear.ts';
import { batchName, DropoutSites } from './dropout-sites.ts';
import type { BatchShape, Init, Model, ModuleSpec, ParameterSpec, TraceContext } from './model.ts';

export interface DemoTransformerConfig {
  readonly vocabSize: number;
  readonly ninp: number;
  readonly nhead: number;
  readonly nhid: number;
  readonly nlayers: number;
  readonly dropout: number;
}

const LAYER_NORM_EPS = 1e-5;

/**
 * Lightning's demo Transformer (lightning.pytorch.demos.Transformer) over torch.nn.Transformer, quirks included: the
 * positional encoding adds the single row p = T to every position, source and target share one embedding, only the
 * decoder's self-attention is masked, and the target is both the decoder's input and the label.
 */
export function demoTransformer(c: DemoTransformerConfig): Model {
  return {
    modules: modules(c),
    parameters: parameters(c),
    blockClasses: ['TransformerEncoderLayer', 'TransformerDecoderLayer'],
    vocabSize: c.vocabSize,
    trace: (graph, shape, context) => new Trace(graph, c, shape, context).run(),
  };
}

/** Row `position` of the sinusoidal table of D columns, computed in float64. */
export function positionalRow(position: number, D: number): Float32Array<ArrayBuffer> {
  const row = new Float32Array(D);
  for (let i = 0; i < D; i += 2) {
    const angle = position * Math.exp((-i * Math.log(10_000)) / D);
    row[i] = Math.sin(angle);
    row[i + 1] = Math.cos(angle);
  }
  return row;
}

function modules(c: DemoTransformerConfig): ModuleSpec[] {
  const list: ModuleSpec[] = [
    { path: '', className: 'Transformer' },
    { path: 'pos_encoder', className: 'PositionalEncoding' },
    { path: 'embedding', className: 'Embedding' },
    { path: 'transformer', className: 'Transformer' },
  ];
  const leaf = (path: string, className: string) => list.push({ path, className });
  const attention = (path: string) => {
    leaf(path, 'MultiheadAttention');
    leaf(`${path}.out_proj`, 'NonDynamicallyQuantizableLinear');
  };
  for (const [side, layerClass, norms] of [
    ['encoder', 'TransformerEncoderLayer', 2],
    ['decoder', 'TransformerDecoderLayer', 3],
  ] as const) {
    const stack = `transformer.${side}`;
    leaf(stack, side === 'encoder' ? 'TransformerEncoder' : 'TransformerDecoder');
    leaf(`${stack}.layers`, 'ModuleList');
    for (let i = 0; i < c.nlayers; i++) {
      const layer = `${stack}.layers.${i}`;
      leaf(layer, layerClass);
      attention(`${layer}.self_attn`);
      if (side === 'decoder') attention(`${layer}.multihead_attn`);
      leaf(`${layer}.linear1`, 'Linear');
      leaf(`${layer}.linear2`, 'Linear');
      for (let n = 1; n <= norms; n++) leaf(`${layer}.norm${n}`, 'LayerNorm');
    }
    leaf(`${stack}.norm`, 'LayerNorm');
  }
  leaf('decoder', 'Linear');
  return list;
}

const zeros: Init = { kind: 'constant', value: 0 };
const ones: Init = { kind: 'constant', value: 1 };
const uniform = (bound: number): Init => ({ kind: 'uniform', bound });

/** Xavier's bound for a matrix [out, in] (torch.nn.init.xavier_uniform_, gain 1). */
const xavier = ([out, input]: readonly number[]) => uniform(Math.sqrt(6 / (input + out)));

function parameters(c: DemoTransformerConfig): ParameterSpec[] {
  const { ninp: D, nhid: H, vocabSize: V } = c;
  const list: ParameterSpec[] = [];
  const add = (name: string, shape: number[], init: Init) => list.push({ name, shape, init });
  const matrix = (name: string, shape: number[]) => add(name, shape, xavier(shape));
  const attention = (path: string) => {
    matrix(`${path}.in_proj_weight`, [3 * D, D]);
    add(`${path}.in_proj_bias`, [3 * D], zeros);
    matrix(`${path}.out_proj.weight`, [D, D]);
    add(`${path}.out_proj.bias`, [D], zeros);
  };
  const norm = (path: string) => {
    add(`${path}.weight`, [D], ones);
    add(`${path}.bias`, [D], zeros);
  };
  add('embedding.weight', [V, D], { kind: 'normal', std: 1 });
  for (const [side, norms] of [
    ['encoder', 2],
    ['decoder', 3],
  ] as const) {
    for (let i = 0; i < c.nlayers; i++) {
      const layer = `transformer.${side}.layers.${i}`;
      attention(`${layer}.self_attn`);
      if (side === 'decoder') attention(`${layer}.multihead_attn`);
      matrix(`${layer}.linear1.weight`, [H, D]);
      add(`${layer}.linear1.bias`, [H], uniform(1 / Math.sqrt(D)));
      matrix(`${layer}.linear2.weight`, [D, H]);
      add(`${layer}.linear2.bias`, [D], uniform(1 / Math.sqrt(H)));
      for (let n = 1; n <= norms; n++) norm(`${layer}.norm${n}`);
    }
    norm(`transformer.${side}.norm`);
  }
  add('decoder.weight', [V, D], uniform(1 / Math.sqrt(D)));
  add('decoder.bias', [V], uniform(1 / Math.sqrt(D)));
  return list;
}

/** One forward pass being written down. */
class Trace {
  private readonly sites: DropoutSites;

  constructor(
    private readonly g: Graph,
    private readonly c: DemoTransformerConfig,
    private readonly shape: BatchShape,
    private readonly context: TraceContext,
  ) {
    this.sites = new DropoutSites(c.dropout, context);
  }

  run(): void {
    const { g, c, shape } = this;
    const { vocabSize: V, ninp: D } = c;
    const rows = shape.batch * shape.tokens;
    const { microBatch = 0, microBatches = 1 } = this.context;
    const input = g.batch(batchName('input', microBatch), [rows]);
    const target = g.batch(batchName('target', microBatch), [rows]);
    const weight = g.parameter('embedding.weight', [V, D]);
    const position = g.constant(`pos_encoder.row ${shape.tokens}`, [D], positionalRow(shape.tokens, D));
    const embedded = (tokens: Value, name: string) =>
      g.within('embedding', () =>
        drop(g, embed(g, tokens, weight, position, Math.sqrt(D), name), this.sites.site(), `${name}.drop`),
      );
    const source = embedded(input, 'source');
    const memory = this.stack('encoder', source, null);
    const decoded = this.stack('decoder', embedded(target, 'target'), memory);
    g.within('decoder', () => {
      const weight = g.parameter('decoder.weight', [V, D]);
      const head = { module: 'decoder', weight, bias: g.parameter('decoder.bias', [V]) };
      headLoss(g, decoded, head, target, { weight: 1 / microBatches, first: microBatch === 0 });
    });
  }

  private stack(side: 'encoder' | 'decoder', first: Value, memory: Value | null): Value {
    let x = first;
    for (let i = 0; i < this.c.nlayers; i++) {
      const path = `transformer.${side}.layers.${i}`;
      const layer = x;
      const body = () => (memory ? this.decoderLayer(path, layer, memory) : this.encoderLayer(path, layer));
      x = this.g.block(path, this.sites.repeatable(body));
    }
    const path = `transformer.${side}.norm`;
    return this.g.within(path, () => normalize(this.g, x, this.norm(path), 'out'));
  }

  private encoderLayer(path: string, x: Value): Value {
    const attended = this.attention(`${path}.self_attn`, x, x, false);
    const h = this.residual(attended, x, `${path}.norm1`);
    return this.residual(this.feedForward(path, h), h, `${path}.norm2`);
  }

  private decoderLayer(path: string, x: Value, memory: Value): Value {
    const attended = this.attention(`${path}.self_attn`, x, x, true);
    const h1 = this.residual(attended, x, `${path}.norm1`);
    const crossed = this.attention(`${path}.multihead_attn`, h1, memory, false);
    const h2 = this.residual(crossed, h1, `${path}.norm2`);
    return this.residual(this.feedForward(path, h2), h2, `${path}.norm3`);
  }

  private attention(path: string, query: Value, memory: Value, causal: boolean): Value {
    const { g, c, shape } = this;
    const D = c.ninp;
    const heads = { ...shape, heads: c.nhead, headDim: D / c.nhead, causal };
    return g.within(path, () => {
      const weight = g.parameter(`${path}.in_proj_weight`, [3 * D, D]);
      const qkv = projectQkv(g, query, memory, weight, g.parameter(`${path}.in_proj_bias`, [3 * D]), 'qkv');
      const mixed = attend(g, qkv, heads, this.sites.site(), 'heads');
      return this.linear(`${path}.out_proj`, mixed, D);
    });
  }

  private feedForward(path: string, x: Value): Value {
    const hidden = this.linear(`${path}.linear1`, x, this.c.nhid, { relu: true, drop: this.sites.site() });
    return this.linear(`${path}.linear2`, hidden, this.c.ninp);
  }

  /** The Linear module at `path`: x [R, K] to [R, features]. */
  private linear(path: string, x: Value, features: number, options: Pick<LinearOptions, 'relu' | 'drop'> = {}): Value {
    const { g } = this;
    return g.within(path, () => {
      const weight = g.parameter(`${path}.weight`, [features, x.shape[1]]);
      return linear(g, x, weight, g.parameter(`${path}.bias`, [features]), { name: 'out', ...options });
    });
  }

  /** LayerNorm(drop(branch) + x). */
  private residual(branch: Value, x: Value, path: string): Value {
    const { g } = this;
    return g.within(path, () => addNormalize(g, branch, x, this.norm(path), 'out', this.sites.site()).y);
  }

  private norm(path: string) {
    const D = this.c.ninp;
    const weight = this.g.parameter(`${path}.weight`, [D]);
    return { weight, bias: this.g.parameter(`${path}.bias`, [D]), eps: LAYER_NORM_EPS };
  }
}
