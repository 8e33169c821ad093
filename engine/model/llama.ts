import { addResidual } from '../ops/add/residual.ts';
import { attend } from '../ops/attention/attend.ts';
import { embed } from '../ops/embedding/embed.ts';
import type { Graph, Value } from '../ops/graph.ts';
import { project } from '../ops/linear/project.ts';
import { addRmsNormalize, type RmsNormWeight, rmsNormalize } from '../ops/rms-norm/rms-normalize.ts';
import { rotaryTable, rotate } from '../ops/rotary/rotate.ts';
import { gateSilu } from '../ops/silu-mul/gate.ts';
import { batchName, DropoutSites } from './dropout-sites.ts';
import { type LanguageEnd, languageLogits, languageLoss } from './language-model.ts';
import type { BatchShape, Init, Model, ModuleSpec, ParameterSpec, TraceContext } from './model.ts';

export interface LlamaConfig {
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly numHiddenLayers: number;
  readonly numAttentionHeads: number;
  readonly numKeyValueHeads: number;
  readonly ropeTheta: number;
  readonly rmsNormEps: number;
  readonly tieWordEmbeddings: boolean;
  /** Of the attention probabilities, the only place where Llama drops. */
  readonly dropout: number;
}

const INIT: Init = { kind: 'normal', std: 0.02 };
const TOKENS = 'model.embed_tokens.weight';

/**
 * Llama as Hugging Face's LlamaForCausalLM has it: pre-norm blocks with root-mean-square norms, rotary positions, SwiGLU and
 * grouped-query attention. With tied embeddings the head is the token embedding: one parameter, under the embedding's name.
 */
export function llama(c: LlamaConfig): Model {
  return {
    modules: modules(c),
    parameters: parameters(c),
    tied: c.tieWordEmbeddings ? [{ name: 'lm_head.weight', tiedTo: TOKENS }] : [],
    blockClasses: ['LlamaDecoderLayer'],
    vocabSize: c.vocabSize,
    trace: (graph, shape, context) => languageLoss(graph, new Trace(graph, c, shape, context).end(), context),
    traceLogits: (graph, shape) =>
      languageLogits(graph, new Trace(graph, { ...c, dropout: 0 }, shape, { rank: 0, seed: 0 }).end()),
  };
}

function modules(c: LlamaConfig): ModuleSpec[] {
  const list: ModuleSpec[] = [];
  const add = (path: string, className: string) => list.push({ path, className });
  add('', 'LlamaForCausalLM');
  add('model', 'LlamaModel');
  add('model.embed_tokens', 'Embedding');
  add('model.layers', 'ModuleList');
  for (let i = 0; i < c.numHiddenLayers; i++) {
    const layer = `model.layers.${i}`;
    add(layer, 'LlamaDecoderLayer');
    add(`${layer}.self_attn`, 'LlamaAttention');
    for (const name of ['q_proj', 'k_proj', 'v_proj', 'o_proj']) add(`${layer}.self_attn.${name}`, 'Linear');
    add(`${layer}.mlp`, 'LlamaMLP');
    for (const name of ['gate_proj', 'up_proj', 'down_proj']) add(`${layer}.mlp.${name}`, 'Linear');
    add(`${layer}.input_layernorm`, 'LlamaRMSNorm');
    add(`${layer}.post_attention_layernorm`, 'LlamaRMSNorm');
  }
  add('model.norm', 'LlamaRMSNorm');
  add('lm_head', 'Linear');
  return list;
}

function parameters(c: LlamaConfig): ParameterSpec[] {
  const { hiddenSize: D, intermediateSize: I } = c;
  const kvWidth = (D / c.numAttentionHeads) * c.numKeyValueHeads;
  const list: ParameterSpec[] = [];
  const weight = (name: string, output: number, input: number) =>
    list.push({ name: `${name}.weight`, shape: [output, input], init: INIT });
  const norm = (name: string) =>
    list.push({ name: `${name}.weight`, shape: [D], init: { kind: 'constant', value: 1 } });
  weight('model.embed_tokens', c.vocabSize, D);
  for (let i = 0; i < c.numHiddenLayers; i++) {
    const layer = `model.layers.${i}`;
    weight(`${layer}.self_attn.q_proj`, D, D);
    weight(`${layer}.self_attn.k_proj`, kvWidth, D);
    weight(`${layer}.self_attn.v_proj`, kvWidth, D);
    weight(`${layer}.self_attn.o_proj`, D, D);
    weight(`${layer}.mlp.gate_proj`, I, D);
    weight(`${layer}.mlp.up_proj`, I, D);
    weight(`${layer}.mlp.down_proj`, D, I);
    norm(`${layer}.input_layernorm`);
    norm(`${layer}.post_attention_layernorm`);
  }
  norm('model.norm');
  if (!c.tieWordEmbeddings) weight('lm_head', c.vocabSize, D);
  return list;
}

/** One forward pass being written down. */
class Trace {
  private readonly sites: DropoutSites;
  private readonly headDim: number;
  private readonly turns: Value;

  constructor(
    private readonly g: Graph,
    private readonly c: LlamaConfig,
    private readonly shape: BatchShape,
    private readonly context: TraceContext,
  ) {
    this.sites = new DropoutSites(c.dropout, context);
    const { tokens } = shape;
    this.headDim = c.hiddenSize / c.numAttentionHeads;
    const table = rotaryTable(tokens, this.headDim, c.ropeTheta);
    this.turns = g.constant(`model.rotary_emb ${tokens}`, [tokens, this.headDim / 2, 2], table);
  }

  end(): LanguageEnd {
    const { g, c, shape } = this;
    const { vocabSize: V, hiddenSize: D } = c;
    const tokens = g.batch(batchName('input', this.context.microBatch ?? 0), [shape.batch * shape.tokens]);
    const table = g.parameter(TOKENS, [V, D]);
    const nothing = g.constant('model.embed_tokens no position', [D], new Float32Array(D));
    let x = g.within('model.embed_tokens', () => embed(g, tokens, table, nothing, 1, 'out'));
    for (let i = 0; i < c.numHiddenLayers; i++) {
      const path = `model.layers.${i}`;
      const before = x;
      x = g.block(
        path,
        this.sites.repeatable(() => this.layer(path, before)),
      );
    }
    const hidden = this.norm('model.norm', (weight) => rmsNormalize(g, x, weight, 'out'));
    return { hidden, weight: c.tieWordEmbeddings ? table : g.parameter('lm_head.weight', [V, D]) };
  }

  private layer(path: string, x: Value): Value {
    const { g } = this;
    const normal = this.norm(`${path}.input_layernorm`, (weight) => rmsNormalize(g, x, weight, 'out'));
    const attended = this.attention(`${path}.self_attn`, normal);
    const { sum, y } = this.norm(`${path}.post_attention_layernorm`, (weight) =>
      addRmsNormalize(g, attended, x, weight, 'out'),
    );
    const fed = this.feedForward(`${path}.mlp`, y);
    return g.within(path, () => addResidual(g, fed, sum));
  }

  private attention(path: string, x: Value): Value {
    const { g, c, headDim } = this;
    const { numAttentionHeads: heads, numKeyValueHeads: kvHeads } = c;
    return g.within(path, () => {
      const qkv = this.project('qkv', x, [
        [`${path}.q_proj`, heads * headDim],
        [`${path}.k_proj`, kvHeads * headDim],
        [`${path}.v_proj`, kvHeads * headDim],
      ]);
      rotate(g, qkv, this.turns, { tokens: this.shape.tokens, heads: heads + kvHeads, headDim });
      const site = this.sites.site();
      const mixed = attend(g, qkv, { ...this.shape, heads, kvHeads, headDim, causal: true }, site, 'heads');
      return this.project('out', mixed, [[`${path}.o_proj`, c.hiddenSize]]);
    });
  }

  private feedForward(path: string, x: Value): Value {
    const { g, c } = this;
    return g.within(path, () => {
      const gateUp = this.project('gate_up', x, [
        [`${path}.gate_proj`, c.intermediateSize],
        [`${path}.up_proj`, c.intermediateSize],
      ]);
      const gated = gateSilu(g, gateUp, 'gated');
      return this.project('out', gated, [[`${path}.down_proj`, c.hiddenSize]]);
    });
  }

  /** The Linear modules at these paths over one input, their features side by side. */
  private project(name: string, x: Value, modules: readonly (readonly [path: string, features: number])[]): Value {
    const { g } = this;
    const layers = modules.map(([module, features]) => ({
      module,
      weight: g.parameter(`${module}.weight`, [features, x.shape[1]]),
    }));
    return project(g, x, layers, { name });
  }

  /** Runs `body` in the LlamaRMSNorm module at `path`, with its weight. */
  private norm<T>(path: string, body: (weight: RmsNormWeight) => T): T {
    const { g, c } = this;
    return g.within(path, () => body({ weight: g.parameter(`${path}.weight`, [c.hiddenSize]), eps: c.rmsNormEps }));
  }
}
