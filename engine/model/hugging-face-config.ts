import { z } from 'zod';
import { ExperimentConfig, type ModelConfig } from '../config.ts';
import { StudioError } from '../errors.ts';

const count = z.int().min(1);

/** What of a GPT2Config we compute; a value that says otherwise is refused. Keys that change nothing here are let through. */
const Gpt2Json = z.looseObject({
  model_type: z.literal('gpt2'),
  vocab_size: count,
  n_layer: count,
  n_head: count,
  n_embd: count,
  n_positions: count,
  n_inner: count.nullable().optional(),
  activation_function: z.enum(['gelu_new', 'gelu_pytorch_tanh']).default('gelu_new'),
  layer_norm_epsilon: z.literal(1e-5).default(1e-5),
  scale_attn_weights: z.literal(true).default(true),
  scale_attn_by_inverse_layer_idx: z.literal(false).default(false),
  add_cross_attention: z.literal(false).default(false),
  tie_word_embeddings: z.boolean().default(true),
});

const plainRope = z.looseObject({
  rope_type: z.literal('default').default('default'),
  rope_theta: z.number().optional(),
});

/** The same of a LlamaConfig. Newer files have the angles in rope_parameters, older ones in rope_theta. */
const LlamaJson = z.looseObject({
  model_type: z.literal('llama'),
  vocab_size: count,
  hidden_size: count,
  intermediate_size: count,
  num_hidden_layers: count,
  num_attention_heads: count,
  num_key_value_heads: count.nullable().optional(),
  head_dim: count.nullable().optional(),
  hidden_act: z.literal('silu').default('silu'),
  rms_norm_eps: z.number().positive(),
  rope_theta: z.number().optional(),
  rope_parameters: plainRope.nullable().optional(),
  rope_scaling: plainRope.nullable().optional(),
  attention_bias: z.literal(false).default(false),
  mlp_bias: z.literal(false).default(false),
  tie_word_embeddings: z.boolean().default(false),
});

const AnyJson = z.discriminatedUnion('model_type', [Gpt2Json, LlamaJson]);

/**
 * The model that a Hugging Face config.json describes, without dropout. `name` is what errors call the file. Throws
 * StudioError `bad-data` naming each key whose value this engine does not compute.
 */
export function fromHuggingFace(json: unknown, name: string): ModelConfig {
  const parsed = AnyJson.safeParse(json);
  if (!parsed.success)
    throw refusal(
      name,
      parsed.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`),
    );
  const c = parsed.data;
  const problems = c.model_type === 'gpt2' ? gpt2Problems(c) : llamaProblems(c);
  if (problems.length) throw refusal(name, problems);
  return ExperimentConfig.shape.model.parse(c.model_type === 'gpt2' ? gpt2Config(c) : llamaConfig(c));
}

function gpt2Problems({ n_inner, n_embd, n_head }: z.infer<typeof Gpt2Json>): string[] {
  return [
    ...((n_inner ?? 4 * n_embd) === 4 * n_embd ? [] : [`n_inner: ${n_inner} is not 4 times n_embd ${n_embd}`]),
    ...(n_embd % n_head ? [`n_head: ${n_head} does not divide n_embd ${n_embd}`] : []),
  ];
}

function llamaProblems(c: z.infer<typeof LlamaJson>): string[] {
  const headDim = c.hidden_size / c.num_attention_heads;
  const kvHeads = c.num_key_value_heads ?? c.num_attention_heads;
  return [
    ...((c.head_dim ?? headDim) === headDim
      ? []
      : [`head_dim: ${c.head_dim} is not hidden_size / num_attention_heads`]),
    ...(headDim % 2 ? [`num_attention_heads: makes heads of ${headDim}; rotary positions need an even width`] : []),
    ...(c.num_attention_heads % kvHeads ? [`num_key_value_heads: ${kvHeads} does not divide num_attention_heads`] : []),
  ];
}

function gpt2Config(c: z.infer<typeof Gpt2Json>): ModelConfig {
  return {
    kind: 'gpt2',
    nLayer: c.n_layer,
    nHead: c.n_head,
    nEmbd: c.n_embd,
    nPositions: c.n_positions,
    vocabSize: c.vocab_size,
    tieWeights: c.tie_word_embeddings,
    dropout: 0,
    freeze: [],
  };
}

function llamaConfig(c: z.infer<typeof LlamaJson>): ModelConfig {
  return {
    kind: 'llama',
    hiddenSize: c.hidden_size,
    intermediateSize: c.intermediate_size,
    numHiddenLayers: c.num_hidden_layers,
    numAttentionHeads: c.num_attention_heads,
    numKeyValueHeads: c.num_key_value_heads ?? c.num_attention_heads,
    vocabSize: c.vocab_size,
    ropeTheta: c.rope_parameters?.rope_theta ?? c.rope_theta ?? 10_000,
    rmsNormEps: c.rms_norm_eps,
    tieWordEmbeddings: c.tie_word_embeddings,
    dropout: 0,
    freeze: [],
  };
}

function refusal(name: string, problems: readonly string[]): StudioError {
  return new StudioError('bad-data', `${name} describes a model that is not ours: ${problems.join('; ')}`, {
    problems,
  });
}
