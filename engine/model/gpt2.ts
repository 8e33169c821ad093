import { StudioError } from '../errors.ts';
import { addResidual } from '../ops/add/residual.ts';
import { attend } from '../ops/attention/attend.ts';
import { drop } from '../ops/dropout/drop.ts';
import { embedPositions } from '../ops/embedding/embed-positions.ts';
import { activateGelu } from '../ops/gelu/activate.ts';
import type { Graph, Value } from '../ops/graph.ts';
import { addNormalize, normalize } from '../ops/layer-norm/normalize.ts';
import { conv1d } from '../ops/linear/conv1d.ts';
import { batchName, DropoutSites } from './dropout-sites.ts';
import { type LanguageEnd, languageLogits, languageLoss } from './language-model.ts';
import type { BatchShape, Init, Model, ModuleSpec, ParameterSpec, TraceContext } from './model.ts';

export interface Gpt2Config {
  readonly vocabSize: number;
  readonly nLayer: number;
  readonly nHead: number;
  readonly nEmbd: number;
  readonly nPositions: number;
  readonly tieWeights: boolean;
  readonly dropout: number;
}

const LAYER_NORM_EPS = 1e-5;
const INITIALIZER_RANGE = 0.02;
const TOKENS = 'transformer.wte.weight';

/**
 * GPT-2 as Hugging Face's GPT2LMHeadModel has it: pre-norm blocks, learned positions, GELU's tanh form, Conv1D weights stored
 * [in, out]. With tied weights the head is the token embedding: one parameter, under the embedding's name.
 */
export function gpt2(c: Gpt2Config): Model {
  return {
    modules: modules(c),
    parameters: parameters(c),
    tied: c.tieWeights ? [{ name: 'lm_head.weight', tiedTo: TOKENS }] : [],
    blockClasses: ['GPT2Block'],
    vocabSize: c.vocabSize,
    maxTokens: c.nPositions,
    trace: (graph, shape, context) => languageLoss(graph, new Trace(graph, c, shape, context).end(), context),
    traceLogits: (graph, shape) =>
      languageLogits(graph, new Trace(graph, { ...c, dropout: 0 }, shape, { rank: 0, seed: 0 }).end()),
  };
}

function modules(c: Gpt2Config): ModuleSpec[] {
  const list: ModuleSpec[] = [];
  const add = (path: string, className: string) => list.push({ path, className });
  add('', 'GPT2LMHeadModel');
  add('transformer', 'GPT2Model');
  add('transformer.wte', 'Embedding');
  add('transformer.wpe', 'Embedding');
  add('transformer.h', 'ModuleList');
  for (let i = 0; i < c.nLayer; i++) {
    const block = `transformer.h.${i}`;
    add(block, 'GPT2Block');
    add(`${block}.ln_1`, 'LayerNorm');
    add(`${block}.attn`, 'GPT2Attention');
    add(`${block}.attn.c_attn`, 'Conv1D');
    add(`${block}.attn.c_proj`, 'Conv1D');
    add(`${block}.ln_2`, 'LayerNorm');
    add(`${block}.mlp`, 'GPT2MLP');
    add(`${block}.mlp.c_fc`, 'Conv1D');
    add(`${block}.mlp.c_proj`, 'Conv1D');
  }
  add('transformer.ln_f', 'LayerNorm');
  add('lm_head', 'Linear');
  return list;
}

/** Hugging Face's initial distributions: a block's two projections into the residual stream are 1/√(2·nLayer) smaller. */
function parameters(c: Gpt2Config): ParameterSpec[] {
  const { nEmbd: D, vocabSize: V } = c;
  const list: ParameterSpec[] = [];
  const constant = (value: number): Init => ({ kind: 'constant', value });
  const weight = (name: string, shape: number[], scale = 1) =>
    list.push({ name, shape, init: { kind: 'normal', std: INITIALIZER_RANGE * scale } });
  const norm = (path: string) => {
    list.push({ name: `${path}.weight`, shape: [D], init: constant(1) });
    list.push({ name: `${path}.bias`, shape: [D], init: constant(0) });
  };
  const conv = (path: string, input: number, output: number, scale = 1) => {
    weight(`${path}.weight`, [input, output], scale);
    list.push({ name: `${path}.bias`, shape: [output], init: constant(0) });
  };
  const residual = 1 / Math.sqrt(2 * c.nLayer);
  weight(TOKENS, [V, D]);
  weight('transformer.wpe.weight', [c.nPositions, D]);
  for (let i = 0; i < c.nLayer; i++) {
    const block = `transformer.h.${i}`;
    norm(`${block}.ln_1`);
    conv(`${block}.attn.c_attn`, D, 3 * D);
    conv(`${block}.attn.c_proj`, D, D, residual);
    norm(`${block}.ln_2`);
    conv(`${block}.mlp.c_fc`, D, 4 * D);
    conv(`${block}.mlp.c_proj`, 4 * D, D, residual);
  }
  norm('transformer.ln_f');
  if (!c.tieWeights) weight('lm_head.weight', [V, D]);
  return list;
}

/** One forward pass being written down. */
class Trace {
  private readonly sites: DropoutSites;

  constructor(
    private readonly g: Graph,
    private readonly c: Gpt2Config,
    private readonly shape: BatchShape,
    private readonly context: TraceContext,
  ) {
    this.sites = new DropoutSites(c.dropout, context);
    if (shape.tokens > c.nPositions)
      throw new StudioError(
        'invalid-config',
        `model.nPositions: ${c.nPositions} positions cannot hold sequences of ${shape.tokens} tokens; shorten the ` +
          `sequences (data.blockSize) or give at least ${shape.tokens}`,
      );
  }

  end(): LanguageEnd {
    const { g, c, shape } = this;
    const tokens = g.batch(batchName('input', this.context.microBatch ?? 0), [shape.batch * shape.tokens]);
    const wte = g.parameter(TOKENS, [c.vocabSize, c.nEmbd]);
    const wpe = g.parameter('transformer.wpe.weight', [c.nPositions, c.nEmbd]);
    let x = g.within('transformer', () =>
      drop(g, embedPositions(g, tokens, wte, wpe, shape, 'embedded'), this.sites.site(), 'embedded.drop'),
    );
    for (let i = 0; i < c.nLayer; i++) {
      const path = `transformer.h.${i}`;
      const before = x;
      x = g.block(
        path,
        this.sites.repeatable(() => this.block(path, before)),
      );
    }
    const hidden = this.norm('transformer.ln_f', (weights) => normalize(g, x, weights, 'out'));
    return { hidden, weight: c.tieWeights ? wte : g.parameter('lm_head.weight', [c.vocabSize, c.nEmbd]) };
  }

  private block(path: string, x: Value): Value {
    const { g } = this;
    const normal = this.norm(`${path}.ln_1`, (weights) => normalize(g, x, weights, 'out'));
    const attended = this.attention(`${path}.attn`, normal);
    const site = this.sites.site();
    const { sum, y } = this.norm(`${path}.ln_2`, (weights) => addNormalize(g, attended, x, weights, 'out', site));
    const fed = this.feedForward(`${path}.mlp`, y);
    return g.within(path, () => addResidual(g, fed, sum));
  }

  /** Without the dropout of its output, which the norm after it does. */
  private attention(path: string, x: Value): Value {
    const { g, c, shape } = this;
    const heads = { ...shape, heads: c.nHead, headDim: c.nEmbd / c.nHead, causal: true };
    const qkv = this.conv(`${path}.c_attn`, x, 3 * c.nEmbd);
    const mixed = g.within(path, () => attend(g, qkv, heads, this.sites.site(), 'heads'));
    return this.conv(`${path}.c_proj`, mixed, c.nEmbd);
  }

  private feedForward(path: string, x: Value): Value {
    const { g, c } = this;
    const hidden = this.conv(`${path}.c_fc`, x, 4 * c.nEmbd, true);
    const active = g.within(path, () => activateGelu(g, hidden, 'active'));
    const out = this.conv(`${path}.c_proj`, active, c.nEmbd);
    return g.within(path, () => drop(g, out, this.sites.site(), 'out.drop'));
  }

  /** The Conv1D module at `path`: x [R, K] to [R, features]. */
  private conv(path: string, x: Value, features: number, hidden = false): Value {
    const { g } = this;
    return g.within(path, () => {
      const weight = g.parameter(`${path}.weight`, [x.shape[1], features]);
      return conv1d(g, x, weight, g.parameter(`${path}.bias`, [features]), 'out', hidden);
    });
  }

  /** Runs `body` in the LayerNorm module at `path`, with its weights. */
  private norm<T>(path: string, body: (weights: { weight: Value; bias: Value; eps: number }) => T): T {
    const { g, c } = this;
    return g.within(path, () => {
      const weight = g.parameter(`${path}.weight`, [c.nEmbd]);
      return body({ weight, bias: g.parameter(`${path}.bias`, [c.nEmbd]), eps: LAYER_NORM_EPS });
    });
  }
}
