import { z } from 'zod';
import { unknownKey } from './config-keys.ts';
import { counted } from './counted.ts';
import { StudioError } from './errors.ts';
import { didYouMean } from './nearest-word.ts';
import { schemaMessage } from './schema-messages.ts';

/**
 * The experiment, as every surface speaks it: the form edits it, the API takes it, a YAML or JSON file holds it, the
 * database keeps it and a checkpoint carries it. Field names are Fabric's, in camelCase; the defaults are always legal.
 */

/** GPT-2's tokens, known without reading their table. */
export const GPT2_VOCAB_SIZE = 50_257;

const count = z.int().min(1);
const patterns = z.array(z.string().min(1)).max(1000);

const DemoTransformer = z.strictObject({
  kind: z.literal('demo-transformer'),
  vocabSize: z.int().min(2).max(10_000_000).nullable().default(null).describe('from the data if left out'),
  ninp: count.max(65_536).default(200),
  nhead: count.max(1024).default(2),
  nhid: count.max(1_048_576).default(200),
  nlayers: count.max(1024).default(2),
  dropout: z.number().min(0).lt(1).default(0),
  freeze: patterns.default([]),
});

const Gpt2 = z.strictObject({
  kind: z.literal('gpt2'),
  nLayer: count.max(1024).default(12),
  nHead: count.max(1024).default(12),
  nEmbd: count.max(65_536).default(768),
  nPositions: count.max(1_048_576).default(1024),
  vocabSize: z.int().min(2).max(10_000_000).nullable().default(null),
  tieWeights: z.boolean().default(true),
  dropout: z.number().min(0).lt(1).default(0),
  freeze: patterns.default([]),
});

const Llama = z.strictObject({
  kind: z.literal('llama'),
  hiddenSize: count.max(65_536).default(256),
  intermediateSize: count.max(1_048_576).default(688),
  numHiddenLayers: count.max(1024).default(4),
  numAttentionHeads: count.max(1024).default(8),
  numKeyValueHeads: count.max(1024).default(8),
  vocabSize: z.int().min(2).max(10_000_000).nullable().default(null),
  ropeTheta: z.number().positive().default(10_000),
  rmsNormEps: z.number().positive().default(1e-6),
  tieWordEmbeddings: z.boolean().default(false),
  dropout: z.number().min(0).lt(1).default(0),
  freeze: patterns.default([]),
});

const seed = z.int().min(0).max(0xffffffff);
const blocks = {
  blockSize: count.max(65_536).default(35),
  batchSize: count.max(65_536).default(1),
  seed: seed.default(1),
  tokenizer: z.enum(['word', 'gpt2']).default('word'),
  validationFraction: z.number().min(0).lt(1).default(0),
};

const Data = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('moby-dick'), ...blocks }),
  z.strictObject({ kind: z.literal('wikitext2'), path: z.string().min(1), ...blocks }),
  z.strictObject({ kind: z.literal('batches'), path: z.string().min(1), seed: seed.default(1) }),
]);

const optimizerCommon = {
  lr: z.number().min(0),
  weightDecay: z.number().min(0),
  foreach: z.boolean().default(true),
  groups: z
    .array(
      z.strictObject({
        match: z.string().min(1),
        lr: z.number().min(0).optional(),
        weightDecay: z.number().min(0).optional(),
      }),
    )
    .max(100)
    .default([]),
};
const beta = z.number().min(0).lt(1);
const adam = { betas: z.tuple([beta, beta]).default([0.9, 0.999]), eps: z.number().positive().default(1e-8) };

const Optimizer = z.discriminatedUnion('kind', [
  z.strictObject({
    kind: z.literal('adam'),
    ...optimizerCommon,
    lr: optimizerCommon.lr.default(0.001),
    weightDecay: optimizerCommon.weightDecay.default(0),
    ...adam,
  }),
  z.strictObject({
    kind: z.literal('adamw'),
    ...optimizerCommon,
    lr: optimizerCommon.lr.default(0.001),
    weightDecay: optimizerCommon.weightDecay.default(0.01),
    ...adam,
  }),
  z.strictObject({
    kind: z.literal('sgd'),
    ...optimizerCommon,
    lr: optimizerCommon.lr.default(0.001),
    weightDecay: optimizerCommon.weightDecay.default(0),
    momentum: z.number().min(0).lt(1).default(0),
    nesterov: z.boolean().default(false),
  }),
]);

const wrapPolicy = z.union([
  z.array(z.string().min(1)).max(100),
  z.strictObject({ minNumParams: z.int().min(1).default(100_000_000) }),
  z.null(),
]);

/** Every name Fabric takes for a sharding strategy, in any case. */
const ShardingStrategy = z
  .string()
  .transform((name) => name.toUpperCase().replace(/^_(?=HYBRID_SHARD_ZERO2$)/, ''))
  .pipe(z.enum(['FULL_SHARD', 'SHARD_GRAD_OP', 'HYBRID_SHARD', 'HYBRID_SHARD_ZERO2', 'NO_SHARD']));

/** What of torch's MixedPrecision is not `precision`'s matter. */
const MixedPrecision = z.preprocess(
  (given) => given ?? {},
  z.strictObject({ reduceDtype: z.enum(['float16', 'float32']).nullable().default(null) }),
);

const Fsdp = z.strictObject({
  kind: z.literal('fsdp'),
  shardingStrategy: ShardingStrategy.default('FULL_SHARD'),
  autoWrapPolicy: wrapPolicy.default(['TransformerEncoderLayer', 'TransformerDecoderLayer']),
  activationCheckpointingPolicy: patterns.default([]),
  cpuOffload: z.boolean().default(false),
  limitAllGathers: z.boolean().default(true),
  backwardPrefetch: z.enum(['BACKWARD_PRE', 'BACKWARD_POST']).nullable().default('BACKWARD_PRE'),
  forwardPrefetch: z.boolean().default(false),
  deviceMesh: z.tuple([count, count]).nullable().default(null),
  linkGBps: z.number().positive().nullable().default(null),
  mixedPrecision: MixedPrecision.prefault({}),
  stateDictType: z.enum(['full', 'sharded']).nullable().default('sharded'),
});

const Ddp = z.strictObject({
  kind: z.literal('ddp'),
  bucketCapMiB: z.number().positive().max(4096).default(25),
  activationCheckpointingPolicy: patterns.default([]),
});

/** A strategy by the one word that Fabric takes for it, written out. */
function expandStrategy(value: unknown): unknown {
  if (value === 'ddp' || value === 'fsdp') return { kind: value };
  if (value === 'fsdp_cpu_offload') return { kind: 'fsdp', cpuOffload: true };
  return value;
}

const Strategy = z.preprocess(expandStrategy, z.discriminatedUnion('kind', [Fsdp, Ddp]));

export const ExperimentConfig = z.strictObject({
  name: z
    .string()
    .min(1)
    .max(200)
    // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what a name must not bring to a terminal or a file
    .refine((name) => !/[\u0000-\u001f\u007f-\u009f]/.test(name), 'has a control character; remove it')
    .default('run'),
  model: z.discriminatedUnion('kind', [DemoTransformer, Gpt2, Llama]).prefault({ kind: 'demo-transformer' }),
  data: Data.prefault({ kind: 'moby-dick' }),
  optimizer: Optimizer.prefault({ kind: 'adam' }),
  lrSchedule: z
    .strictObject({
      kind: z.enum(['constant', 'cosine', 'linear']).default('constant'),
      warmupSteps: z.int().min(0).default(0),
      minLr: z.number().min(0).default(0),
    })
    .prefault({}),
  precision: z.enum(['32-true', '16-mixed', '16-true', 'bf16-mixed', 'bf16-true']).default('32-true'),
  devices: z.int().min(1).max(8, 'at most 8 ranks on one machine').default(2),
  adapter: z.string().min(1).max(200).default('auto'),
  strategy: Strategy.prefault({ kind: 'fsdp' }),
  init: z
    .strictObject({
      mode: z.enum(['cpu', 'device', 'empty']).default('empty'),
      from: z.string().min(1).nullable().default(null),
    })
    .prefault({}),
  trainer: z
    .strictObject({
      steps: count.max(10_000_000).default(10),
      seed: seed.default(42),
      accumulateGradBatches: count.max(4096).default(1),
      syncEveryMicroBatch: z.boolean().default(false),
      gradientClipVal: z.number().positive().nullable().default(null),
      gradientClipAlgorithm: z.enum(['norm', 'value']).default('norm'),
      onNonFinite: z.enum(['stop', 'skip']).default('stop'),
      validateEvery: count.nullable().default(null),
      validateBatches: count.max(100_000).default(8),
    })
    .prefault({}),
  checkpoint: z
    .strictObject({
      every: count.nullable().default(null),
      keepLast: count.nullable().default(null),
      atEnd: z.boolean().default(true),
      format: z.enum(['full', 'sharded', 'safetensors']).nullable().default(null),
      filter: patterns.nullable().default(null),
      strict: z.boolean().default(true),
      onSaveError: z.enum(['continue', 'stop']).default('continue'),
      resume: z.string().min(1).nullable().default(null),
    })
    .prefault({}),
  memoryBudgetMiB: z.number().positive().nullable().default(null),
});
export type ExperimentConfig = z.infer<typeof ExperimentConfig>;
export type ModelConfig = ExperimentConfig['model'];
export type DataConfig = ExperimentConfig['data'];
export type OptimizerConfig = ExperimentConfig['optimizer'];
export type StrategyConfig = ExperimentConfig['strategy'];

/** The form in which a run's checkpoints are written: checkpoint.format, else strategy.stateDictType; full for DDP. */
export function checkpointFormat({
  checkpoint,
  strategy,
}: Pick<ExperimentConfig, 'checkpoint' | 'strategy'>): 'full' | 'sharded' | 'safetensors' {
  return checkpoint.format ?? (strategy.kind === 'fsdp' ? (strategy.stateDictType ?? 'sharded') : 'full');
}

/** One thing wrong with a config: where (dotted path of the person's own keys) and what to do. */
export interface ConfigProblem {
  readonly path: string;
  readonly message: string;
  readonly code: 'invalid-config';
}

type ParseResult = { config: ExperimentConfig; problems: [] } | { config: null; problems: ConfigProblem[] };

/** Checks a config without throwing: every problem at once, each in its place. */
export function checkConfig(input: unknown): ParseResult {
  const parsed = ExperimentConfig.safeParse(withBlockClasses(input ?? {}), { reportInput: true });
  if (!parsed.success) return { config: null, problems: parsed.error.issues.flatMap((issue) => schemaProblems(issue)) };
  const problems = contradictions(parsed.data);
  return problems.length ? { config: null, problems } : { config: parsed.data, problems: [] };
}

/**
 * Parses a config. Throws StudioError `invalid-config` whose message lists every problem by the person's own keys.
 */
export function parseConfig(input: unknown): ExperimentConfig {
  const { config, problems } = checkConfig(input);
  if (config) return config;
  throw new StudioError(
    'invalid-config',
    problems.map((p) => (p.path ? `${p.path}: ${p.message}` : p.message)).join('\n'),
    {
      problems,
    },
  );
}

/** What the wrap policy names where the config leaves it out: the blocks of the model. */
const blockClasses: Readonly<Record<string, readonly string[]>> = {
  gpt2: ['GPT2Block'],
  llama: ['LlamaDecoderLayer'],
};

/** The defaults are always legal: a wrap policy that is left out fits the model's kind. */
function withBlockClasses(input: unknown): unknown {
  const { model, strategy = 'fsdp' } = input as { model?: { kind?: unknown }; strategy?: unknown };
  const kind = model?.kind;
  const classes = typeof kind === 'string' && Object.hasOwn(blockClasses, kind) ? blockClasses[kind] : null;
  const written = expandStrategy(strategy) as { kind?: unknown; autoWrapPolicy?: unknown } | null;
  if (!classes || written?.kind !== 'fsdp' || written.autoWrapPolicy !== undefined) return input;
  return { ...(input as object), strategy: { ...written, autoWrapPolicy: classes } };
}

type SchemaIssue = z.core.$ZodIssue;

/** Of so many keys that a section has not each is told; of the others only how many they are. */
const UNKNOWN_KEYS_NAMED = 20;

function schemaProblems(issue: SchemaIssue, prefix: readonly PropertyKey[] = []): ConfigProblem[] {
  const path = [...prefix, ...issue.path];
  const at = (message: string, extra?: string): ConfigProblem => ({
    path: [...path, ...(extra === undefined ? [] : [extra])].map(String).join('.'),
    message,
    code: 'invalid-config',
  });
  if (issue.code === 'unrecognized_keys')
    return issue.keys.slice(0, UNKNOWN_KEYS_NAMED).map((key, i) => {
      const more = issue.keys.length - UNKNOWN_KEYS_NAMED;
      const rest = more > 0 && i === UNKNOWN_KEYS_NAMED - 1 ? `; and ${more} more` : '';
      return at(unknownKey(ExperimentConfig, path, issue.input, key) + rest, key);
    });
  if (issue.code === 'invalid_union') {
    if ('note' in issue && issue.note === 'No matching discriminator') return [at(kindMessage(path, issue.input))];
    const closest = [...issue.errors].sort((a, b) => a.length - b.length)[0];
    if (closest?.length && issue.errors.length > 0 && closest[0].path.length)
      return closest.flatMap((e) => schemaProblems(e, path));
    return [at('none of the allowed forms: a list of class names, { minNumParams: … }, or null')];
  }
  const kinds = kindsAt(path);
  if (path.length === 1 && kinds.length && issue.code === 'invalid_type')
    return [at(`needs a section with a kind, one of ${kinds.join(', ')}`)];
  return [at(schemaMessage(issue))];
}

function kindMessage(path: readonly PropertyKey[], section: unknown): string {
  const kinds = kindsAt(path);
  const written = (section as { kind?: unknown }).kind;
  if (written === undefined) return `is missing. It is one of ${kinds.join(', ')}`;
  const near = typeof written === 'string' ? didYouMean(written, kinds) : '';
  return `unknown kind. It is one of ${kinds.join(', ')}${near}`;
}

function kindsAt(path: readonly PropertyKey[]): string[] {
  const kinds: Record<string, string[]> = {
    model: ['demo-transformer', 'gpt2', 'llama'],
    data: ['moby-dick', 'wikitext2', 'batches'],
    optimizer: ['adam', 'adamw', 'sgd'],
    strategy: ['ddp', 'fsdp', 'fsdp_cpu_offload'],
  };
  return kinds[String(path[0])] ?? [];
}

function contradictions(c: ExperimentConfig): ConfigProblem[] {
  const problems: ConfigProblem[] = [];
  const bad = (path: string, message: string) => problems.push({ path, message, code: 'invalid-config' });
  if (c.model.kind === 'demo-transformer') {
    const { ninp, nhead } = c.model;
    if (ninp % nhead) bad('model.nhead', `${nhead} does not divide model.ninp ${ninp}: each head needs a whole width`);
    if (ninp % 2) bad('model.ninp', `${ninp} is odd: the positional encoding pairs a sine with a cosine`);
  }
  if (c.model.kind === 'gpt2') {
    const { nEmbd, nHead, nPositions } = c.model;
    if (nEmbd % nHead)
      bad('model.nHead', `${nHead} does not divide model.nEmbd ${nEmbd}: each head needs a whole width`);
    if (c.data.kind !== 'batches' && c.data.blockSize > nPositions)
      bad(
        'model.nPositions',
        `${nPositions} positions cannot hold data.blockSize ${c.data.blockSize} tokens; raise it, or shorten the blocks`,
      );
  }
  if (c.model.kind === 'llama') {
    const { hiddenSize, numAttentionHeads: heads, numKeyValueHeads: kvHeads } = c.model;
    if (hiddenSize % heads)
      bad(
        'model.numAttentionHeads',
        `${heads} does not divide model.hiddenSize ${hiddenSize}: each head needs a whole width`,
      );
    else if ((hiddenSize / heads) % 2)
      bad(
        'model.numAttentionHeads',
        `makes heads of ${hiddenSize / heads}, model.hiddenSize ${hiddenSize} / ${heads}: rotary positions turn pairs, ` +
          'so a head needs an even width',
      );
    if (heads % kvHeads)
      bad(
        'model.numKeyValueHeads',
        `${kvHeads} does not divide model.numAttentionHeads ${heads}: each is shared by equally many heads`,
      );
  }
  refuseSize(c, bad);
  refuseOptimizer(c, bad);
  if (c.strategy.kind === 'fsdp') refuseMesh(c.strategy, c.devices, bad);
  if (c.precision.startsWith('bf16'))
    bad(
      'precision',
      `${c.precision}: WebGPU has no bfloat16 arithmetic; use ${c.precision === 'bf16-true' ? '16-true' : '16-mixed'}`,
    );
  refuseCheckpoint(c, bad);
  const { validateEvery } = c.trainer;
  if (validateEvery !== null && (c.data.kind === 'batches' || c.data.validationFraction === 0))
    bad(
      'trainer.validateEvery',
      c.data.kind === 'batches'
        ? 'a batches file has no held-out part; use a text, or leave it out'
        : 'needs data.validationFraction above 0: the part of the text that is held out',
    );
  return problems;
}

type Refuse = (path: string, message: string) => void;

/** Passes through a block, forward and backward, of which a step may consist: beyond, its planning takes minutes. */
const MAX_BLOCK_PASSES = 2048;
/** Parameters times micro-batches: what a step may move, in pieces that are planned one by one. 70 billion fill 8 GPUs. */
const MAX_PARAMETER_PASSES = 128e9;

/** What is legal by itself, but too large together, or too small for its data. */
function refuseSize({ model, data, trainer }: ExperimentConfig, bad: Refuse): void {
  if (
    data.kind !== 'batches' &&
    data.tokenizer === 'gpt2' &&
    model.vocabSize !== null &&
    model.vocabSize < GPT2_VOCAB_SIZE
  )
    bad(
      'model.vocabSize',
      `${model.vocabSize} is fewer than GPT-2's ${GPT2_VOCAB_SIZE} tokens, which data.tokenizer gpt2 gives: set ` +
        `${GPT2_VOCAB_SIZE} or more, leave it out, or set data.tokenizer word`,
    );
  const { blocks, layersField, widthField, params } = sizeOf(model);
  const { accumulateGradBatches: rounds } = trainer;
  const said = (path: string) => (rounds === 1 ? path : `${path} or trainer.accumulateGradBatches`);
  const inRounds = rounds === 1 ? '' : `, times trainer.accumulateGradBatches ${rounds}`;
  if (blocks * rounds > MAX_BLOCK_PASSES)
    bad(
      layersField,
      `makes ${blocks} blocks${inRounds}: more than the ${MAX_BLOCK_PASSES} that a step can be planned for in a minute; ` +
        `lower ${said(layersField)}`,
    );
  else if (params * rounds > MAX_PARAMETER_PASSES)
    bad(
      widthField,
      `makes about ${Math.round(params / 1e9)} billion parameters${inRounds}: more than the ` +
        `${MAX_PARAMETER_PASSES / 1e9} billion that a step can be planned for in a minute; lower ${said(widthField)}`,
    );
}

/** Blocks of a model, and its matrices' elements with the fields that make them so many. */
function sizeOf(model: ModelConfig): { blocks: number; params: number; layersField: string; widthField: string } {
  const words = model.vocabSize ?? 0;
  if (model.kind === 'demo-transformer') {
    const { ninp, nhid, nlayers } = model;
    const params = nlayers * (12 * ninp ** 2 + 4 * ninp * nhid) + 2 * words * ninp;
    return { blocks: 2 * nlayers, params, layersField: 'model.nlayers', widthField: 'model.ninp' };
  }
  if (model.kind === 'gpt2') {
    const { nLayer, nEmbd, nPositions, tieWeights } = model;
    const params = nLayer * 12 * nEmbd ** 2 + nEmbd * (nPositions + words * (tieWeights ? 1 : 2));
    return { blocks: nLayer, params, layersField: 'model.nLayer', widthField: 'model.nEmbd' };
  }
  const { hiddenSize, intermediateSize, numHiddenLayers, numAttentionHeads, numKeyValueHeads } = model;
  const attention = 2 * hiddenSize ** 2 * (1 + numKeyValueHeads / numAttentionHeads);
  const tables = words * hiddenSize * (model.tieWordEmbeddings ? 1 : 2);
  const params = numHiddenLayers * (attention + 3 * hiddenSize * intermediateSize) + tables;
  return { blocks: numHiddenLayers, params, layersField: 'model.numHiddenLayers', widthField: 'model.hiddenSize' };
}

function refuseOptimizer({ optimizer, lrSchedule, trainer }: ExperimentConfig, bad: Refuse): void {
  if (optimizer.kind === 'sgd' && optimizer.nesterov && optimizer.momentum === 0)
    bad('optimizer.nesterov', 'needs optimizer.momentum above 0');
  refuseBeyondFloat32(optimizer, bad);
  optimizer.groups.forEach((group, i) => {
    if (group.lr === undefined && group.weightDecay === undefined)
      bad(`optimizer.groups.${i}`, `${group.match} changes nothing: give it an lr or a weightDecay, or remove it`);
  });
  const { kind, warmupSteps, minLr } = lrSchedule;
  if (warmupSteps > trainer.steps)
    bad(
      'lrSchedule.warmupSteps',
      `a warm-up of ${counted(warmupSteps, 'step')} does not end within trainer.steps ${trainer.steps}; shorten it, or train longer`,
    );
  if (kind !== 'constant' && minLr > optimizer.lr)
    bad(
      'lrSchedule.minLr',
      `${minLr} is above optimizer.lr ${optimizer.lr}: the rate would rise. Lower it, or raise optimizer.lr`,
    );
  if (trainer.gradientClipAlgorithm === 'value' && trainer.gradientClipVal === null)
    bad(
      'trainer.gradientClipVal',
      'trainer.gradientClipAlgorithm value clips at nothing: give a value, or leave the algorithm out',
    );
}

/** The device computes in float32: what it would take for 0 or for infinity there is another setting. */
function refuseBeyondFloat32(optimizer: OptimizerConfig, bad: Refuse): void {
  const tooLarge = (path: string, value: number | undefined) => {
    if (value !== undefined && !Number.isFinite(Math.fround(value)))
      bad(path, `${value} is infinite in float32, in which it is computed: give at most 3.4e38`);
  };
  tooLarge('optimizer.lr', optimizer.lr);
  tooLarge('optimizer.weightDecay', optimizer.weightDecay);
  optimizer.groups.forEach((group, i) => {
    tooLarge(`optimizer.groups.${i}.lr`, group.lr);
    tooLarge(`optimizer.groups.${i}.weightDecay`, group.weightDecay);
  });
  if (optimizer.kind === 'sgd') return;
  tooLarge('optimizer.eps', optimizer.eps);
  if (Math.fround(optimizer.eps) === 0)
    bad('optimizer.eps', `${optimizer.eps} is 0 in float32, in which it is computed: give at least 1e-38`);
}

/** A mesh is [rows, ranks in a row]: HYBRID_SHARD shards within a row and copies across rows. */
function refuseMesh(s: Extract<StrategyConfig, { kind: 'fsdp' }>, devices: number, bad: Refuse): void {
  const path = 'strategy.deviceMesh';
  const name = s.shardingStrategy;
  const isHybrid = name.startsWith('HYBRID');
  const mesh = s.deviceMesh;
  const written = mesh && `[${mesh.join(', ')}]`;
  if (mesh && !isHybrid)
    bad(
      path,
      `${written} is for HYBRID_SHARD: with ${name} one of its dimensions would never be synchronised. Remove it, or ` +
        'choose strategy.shardingStrategy HYBRID_SHARD',
    );
  else if (isHybrid && !mesh) bad(path, `${name} needs [replicate, shard]; ${meshesOf(devices)}`);
  else if (mesh && mesh[0] * mesh[1] !== devices)
    bad(path, `${written} makes ${counted(mesh[0] * mesh[1], 'rank')} and devices is ${devices}; ${meshesOf(devices)}`);
  else if (mesh?.[1] === 1)
    bad(
      path,
      `${written} has rows of one rank, which shard nothing; ${meshesOf(devices)}. To keep a copy on every rank, use ddp`,
    );
  // Hybrid without a mesh is refused above.
  const rows = mesh?.[0] ?? (isHybrid || name === 'NO_SHARD' ? devices : 1);
  if (s.linkGBps !== null && rows === 1)
    bad(
      'strategy.linkGBps',
      `is the link between the rows of a mesh, and ${mesh ? `${written} has` : `${name} makes`} one row. Remove it, or ` +
        'choose HYBRID_SHARD with a deviceMesh of two rows or more',
    );
}

/** Meshes [rows, ranks in a row] of so many ranks: two rows or more, of two ranks or more. */
export function legalMeshes(devices: number): [number, number][] {
  const meshes: [number, number][] = [];
  for (let shard = 2; shard <= devices / 2; shard++) if (devices % shard === 0) meshes.push([devices / shard, shard]);
  return meshes;
}

/** The meshes of so many ranks, as the way out. */
function meshesOf(devices: number): string {
  const meshes = legalMeshes(devices).map((mesh) => `[${mesh.join(', ')}]`);
  if (meshes.length) return `devices ${devices} can be ${meshes.join(' or ')}`;
  return `devices ${devices} has no two rows of two ranks or more: use 4, 6 or 8 devices, or strategy.shardingStrategy FULL_SHARD`;
}

function refuseCheckpoint(c: ExperimentConfig, bad: Refuse): void {
  const { checkpoint, init } = c;
  if (checkpoint.filter !== null && checkpointFormat(c) === 'sharded')
    bad(
      'checkpoint.filter',
      'a part of a sharded checkpoint cannot be loaded, so it is not saved either: use checkpoint.format full or ' +
        'safetensors, or remove the filter',
    );
  if (checkpoint.filter?.length === 0) bad('checkpoint.filter', 'keeps nothing: name what to keep, or remove it');
  if (checkpoint.resume !== null && init.from !== null)
    bad('init.from', 'checkpoint.resume brings the weights too: remove one of the two');
}
