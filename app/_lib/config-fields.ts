import type { Draft } from './config-draft.ts';

/** One value that a field can take, and how it is said. `null` is a value too. */
export interface Choice {
  readonly value: string | null;
  readonly label: string;
  readonly hint?: string;
}

interface FieldBase {
  /** Dotted path in the config. */
  readonly path: string;
  readonly label: string;
  readonly help?: string;
  /** Only where the config's section is of this kind, and what else must hold for it to matter; `devices: 2`: several ranks. */
  readonly of?: Draft;
}

export type Field =
  | (FieldBase & { readonly input: 'integer' | 'number'; readonly unit?: string; readonly none?: string })
  | (FieldBase & { readonly input: 'switch' })
  | (FieldBase & { readonly input: 'choice'; readonly choices: readonly Choice[] })
  | (FieldBase & { readonly input: 'ranks' | 'adapter' | 'mesh' | 'wrapping' | 'optimizer-groups' })
  | (FieldBase & { readonly input: 'text' | 'names'; readonly none?: string })
  | (FieldBase & { readonly input: 'numbers'; readonly count: number })
  | (FieldBase & {
      readonly input: 'file';
      readonly upload: 'text' | 'batches' | 'checkpoint';
      readonly none?: string;
    });

export interface FieldGroup {
  readonly id: string;
  readonly title: string;
  readonly about: string;
  readonly fields: readonly Field[];
}

const demo = { model: { kind: 'demo-transformer' } };
const gpt2 = { model: { kind: 'gpt2' } };
const llama = { model: { kind: 'llama' } };
const fsdp = { strategy: { kind: 'fsdp' } };
const hybrid = { strategy: { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', deviceMesh: [1, 2] } };
const sgd = { optimizer: { kind: 'sgd' } };
const text = [{ data: { kind: 'moby-dick' } }, { data: { kind: 'wikitext2', path: 'x' } }];

const forEach = (of: readonly Draft[], field: Field): Field[] => of.map((one) => ({ ...field, of: one }));

/** Every field of the config, grouped as the form shows them. */
export const FIELD_GROUPS: readonly FieldGroup[] = [
  {
    id: 'run',
    title: 'Run',
    about: 'What it is called, how long it trains and where.',
    fields: [
      { path: 'name', label: 'Name', input: 'text' },
      { path: 'trainer.steps', label: 'Steps', input: 'integer', help: 'Optimizer steps. Steps count from 0.' },
      {
        path: 'devices',
        label: 'Ranks',
        input: 'ranks',
        help: 'One process each, on this machine. Ranks may share one adapter.',
      },
      { path: 'adapter', label: 'Adapter', input: 'adapter', help: 'The GPU, or what stands in for one.' },
      {
        path: 'memoryBudgetMiB',
        label: 'Memory budget',
        input: 'number',
        unit: 'MiB',
        none: 'no limit',
        help: 'Of each rank, as of a smaller GPU. What does not fit fails before step 0.',
      },
    ],
  },
  {
    id: 'strategy',
    title: 'Strategy',
    about: 'Who holds what: the one choice that decides memory.',
    fields: [
      {
        path: 'strategy.kind',
        label: 'Strategy',
        input: 'choice',
        choices: [
          { value: 'ddp', label: 'DDP', hint: 'Every rank holds the whole model; gradients are averaged' },
          { value: 'fsdp', label: 'FSDP', hint: 'Ranks hold shards; units are gathered when needed' },
        ],
      },
      {
        path: 'strategy.shardingStrategy',
        of: fsdp,
        label: 'Sharding strategy',
        input: 'choice',
        choices: [
          { value: 'FULL_SHARD', label: 'FULL_SHARD', hint: 'parameters, gradients and optimizer state' },
          { value: 'SHARD_GRAD_OP', label: 'SHARD_GRAD_OP', hint: 'stays gathered from forward to backward' },
          {
            value: 'HYBRID_SHARD',
            label: 'HYBRID_SHARD',
            hint: 'sharded within a row, copied across rows: for rows joined by a slower link than the ranks of one',
          },
          {
            value: 'HYBRID_SHARD_ZERO2',
            label: 'HYBRID_SHARD_ZERO2',
            hint: 'hybrid, and stays gathered from forward to backward',
          },
          { value: 'NO_SHARD', label: 'NO_SHARD', hint: 'as DDP' },
        ],
      },
      {
        path: 'strategy.deviceMesh',
        of: hybrid,
        label: 'Device mesh',
        input: 'mesh',
        help: 'Rows × ranks of a row. Units are gathered within a row; between rows only shards of gradients pass.',
      },
      {
        path: 'strategy.autoWrapPolicy',
        of: fsdp,
        label: 'Units',
        input: 'wrapping',
        help: 'A unit is gathered and freed as one; what no unit holds is the root, which stays gathered.',
      },
      {
        path: 'strategy.limitAllGathers',
        of: fsdp,
        label: 'Limit all-gathers',
        input: 'switch',
        help: 'At most two units besides the root are gathered at once.',
      },
      {
        path: 'strategy.backwardPrefetch',
        of: fsdp,
        label: 'Backward prefetch',
        input: 'choice',
        choices: [
          { value: 'BACKWARD_PRE', label: 'BACKWARD_PRE', hint: 'before the unit’s gradients' },
          { value: 'BACKWARD_POST', label: 'BACKWARD_POST', hint: 'after them' },
          { value: null, label: 'none' },
        ],
      },
      {
        path: 'strategy.forwardPrefetch',
        of: fsdp,
        label: 'Forward prefetch',
        input: 'switch',
        help: 'The next unit is gathered while this one computes, not earlier.',
      },
      {
        path: 'strategy.cpuOffload',
        of: fsdp,
        label: 'CPU offload',
        input: 'switch',
        help: 'Parameters and optimizer state live in host memory; a unit is updated as soon as its gradients are there, where nothing has to be known of all gradients first.',
      },
      {
        path: 'strategy.linkGBps',
        of: hybrid,
        label: 'Simulated link',
        input: 'number',
        unit: 'GB/s',
        none: 'off',
        help: 'Between rows, as if on two hosts: the prediction sets FULL_SHARD over it beside this. Charts and exports say so.',
      },
      {
        path: 'strategy.mixedPrecision.reduceDtype',
        of: { devices: 2, ...fsdp },
        label: 'Gradients travel as',
        input: 'choice',
        help: 'By default as precision says: float32 in 32-true, float16 in 16-mixed and 16-true. float16 halves their bytes and loses what is below 6e-8. It is PyTorch’s MixedPrecision(reduce_dtype).',
        choices: [
          { value: null, label: 'as precision says' },
          { value: 'float32', label: 'float32' },
          { value: 'float16', label: 'float16' },
        ],
      },
      {
        path: 'strategy.stateDictType',
        of: fsdp,
        label: 'State dict',
        input: 'choice',
        help: 'The form of checkpoints, where their own format is automatic.',
        choices: [
          { value: null, label: 'default' },
          { value: 'full', label: 'full' },
          { value: 'sharded', label: 'sharded' },
        ],
      },
      {
        path: 'strategy.bucketCapMiB',
        of: { strategy: { kind: 'ddp' } },
        label: 'Bucket size',
        input: 'number',
        unit: 'MiB',
        help: 'Gradients are reduced in buckets, while backward still runs.',
      },
      ...forEach([fsdp, { strategy: { kind: 'ddp' } }], {
        path: 'strategy.activationCheckpointingPolicy',
        label: 'Checkpoint activations of',
        input: 'names',
        none: 'no class',
        help: 'Blocks of these classes keep only their inputs and compute the rest again in backward.',
      }),
    ],
  },
  {
    id: 'model',
    title: 'Model',
    about: 'Modules and parameters are named as PyTorch names them.',
    fields: [
      {
        path: 'model.kind',
        label: 'Model',
        input: 'choice',
        choices: [
          { value: 'demo-transformer', label: 'Demo Transformer' },
          { value: 'gpt2', label: 'GPT-2' },
          { value: 'llama', label: 'Llama' },
        ],
      },
      {
        path: 'model.ninp',
        of: demo,
        label: 'Width',
        input: 'integer',
        help: 'Of the embedding and of every layer. Even, and divisible by the heads.',
      },
      { path: 'model.nhead', of: demo, label: 'Heads', input: 'integer' },
      { path: 'model.nhid', of: demo, label: 'Feed-forward width', input: 'integer' },
      {
        path: 'model.nlayers',
        of: demo,
        label: 'Layers',
        input: 'integer',
        help: 'So many encoder layers, and so many decoder layers.',
      },
      { path: 'model.nLayer', of: gpt2, label: 'Layers', input: 'integer' },
      { path: 'model.nHead', of: gpt2, label: 'Heads', input: 'integer' },
      { path: 'model.nEmbd', of: gpt2, label: 'Width', input: 'integer' },
      { path: 'model.nPositions', of: gpt2, label: 'Positions', input: 'integer' },
      { path: 'model.tieWeights', of: gpt2, label: 'Tie weights', input: 'switch' },
      { path: 'model.hiddenSize', of: llama, label: 'Width', input: 'integer' },
      { path: 'model.intermediateSize', of: llama, label: 'Feed-forward width', input: 'integer' },
      { path: 'model.numHiddenLayers', of: llama, label: 'Layers', input: 'integer' },
      { path: 'model.numAttentionHeads', of: llama, label: 'Heads', input: 'integer' },
      { path: 'model.numKeyValueHeads', of: llama, label: 'Key/value heads', input: 'integer' },
      { path: 'model.ropeTheta', of: llama, label: 'Rope theta', input: 'number' },
      { path: 'model.rmsNormEps', of: llama, label: 'Norm epsilon', input: 'number' },
      { path: 'model.tieWordEmbeddings', of: llama, label: 'Tie embeddings', input: 'switch' },
      ...forEach([demo, gpt2, llama], {
        path: 'model.vocabSize',
        label: 'Vocabulary',
        input: 'integer',
        none: 'from the data',
      }),
      ...forEach([demo, gpt2, llama], {
        path: 'model.dropout',
        label: 'Dropout',
        input: 'number',
        help: 'The same masks in a recompute.',
      }),
      ...forEach([demo, gpt2, llama], {
        path: 'model.freeze',
        label: 'Freeze',
        input: 'names',
        none: 'nothing',
        help: 'Names of parameters that are not trained; * stands for any characters.',
      }),
      { path: 'trainer.seed', label: 'Seed', input: 'integer', help: 'Of the initial weights.' },
      {
        path: 'init.mode',
        label: 'Initialise',
        input: 'choice',
        choices: [
          { value: 'empty', label: 'empty', hint: 'each rank makes only its own shard' },
          { value: 'device', label: 'device', hint: 'its shard is made on the GPU; the same values' },
          { value: 'cpu', label: 'cpu', hint: 'each whole parameter on the host, cut afterwards; the same values' },
        ],
      },
      {
        path: 'init.from',
        label: 'Weights from',
        input: 'file',
        upload: 'checkpoint',
        none: 'random, from the seed',
        help: '.safetensors, .pt, .ckpt, a sharded folder, or its .tar to upload',
      },
    ],
  },
  {
    id: 'data',
    title: 'Data',
    about: 'Every rank trains on its own part.',
    fields: [
      {
        path: 'data.kind',
        label: 'Data',
        input: 'choice',
        choices: [
          { value: 'moby-dick', label: 'Moby-Dick', hint: 'comes with the studio' },
          { value: 'wikitext2', label: 'Text file', hint: 'tokenised as WikiText2' },
          { value: 'batches', label: 'Batches', hint: 'token ids by step and rank' },
        ],
      },
      {
        path: 'data.path',
        of: { data: { kind: 'wikitext2', path: 'x' } },
        label: 'Text file',
        input: 'file',
        upload: 'text',
        help: 'UTF-8, in the studio’s data folder.',
      },
      {
        path: 'data.path',
        of: { data: { kind: 'batches', path: 'x' } },
        label: 'Batches file',
        input: 'file',
        upload: 'batches',
        help: 'JSON: batches[step][rank].',
      },
      ...forEach(text, { path: 'data.blockSize', label: 'Tokens in a sample', input: 'integer' }),
      ...forEach(text, { path: 'data.batchSize', label: 'Batch size of a rank', input: 'integer' }),
      ...forEach(text, {
        path: 'data.seed',
        label: 'Order seed',
        input: 'integer',
        help: 'The order of samples follows from it alone.',
      }),
      ...forEach(text, {
        path: 'data.tokenizer',
        label: 'Tokenizer',
        input: 'choice',
        choices: [
          { value: 'word', label: 'Words of the text' },
          { value: 'gpt2', label: 'GPT-2’s 50,257 tokens' },
        ],
      }),
      ...forEach(text, { path: 'data.validationFraction', label: 'Held out', input: 'number' }),
    ],
  },
  {
    id: 'optimizer',
    title: 'Optimizer',
    about: 'Adam keeps two more numbers for each parameter.',
    fields: [
      {
        path: 'optimizer.kind',
        label: 'Optimizer',
        input: 'choice',
        choices: [
          { value: 'adam', label: 'Adam' },
          { value: 'adamw', label: 'AdamW' },
          { value: 'sgd', label: 'SGD' },
        ],
      },
      { path: 'optimizer.lr', label: 'Learning rate', input: 'number' },
      ...forEach([{ optimizer: { kind: 'adam' } }, { optimizer: { kind: 'adamw' } }], {
        path: 'optimizer.betas',
        label: 'Betas',
        input: 'numbers',
        count: 2,
      }),
      ...forEach([{ optimizer: { kind: 'adam' } }, { optimizer: { kind: 'adamw' } }], {
        path: 'optimizer.eps',
        label: 'Epsilon',
        input: 'number',
      }),
      { path: 'optimizer.momentum', of: sgd, label: 'Momentum', input: 'number' },
      { path: 'optimizer.nesterov', of: sgd, label: 'Nesterov', input: 'switch' },
      { path: 'optimizer.weightDecay', label: 'Weight decay', input: 'number' },
      {
        path: 'optimizer.foreach',
        label: 'All parameters at once',
        input: 'switch',
        help: 'Fewer dispatches, the same memory: PyTorch’s peak with foreach does not exist here.',
      },
      {
        path: 'optimizer.groups',
        label: 'Parameter groups',
        input: 'optimizer-groups',
        help: 'A parameter takes the first entry whose pattern fits its name; * stands for any characters.',
      },
      {
        path: 'lrSchedule.kind',
        label: 'Schedule',
        input: 'choice',
        choices: [
          { value: 'constant', label: 'constant' },
          { value: 'cosine', label: 'cosine' },
          { value: 'linear', label: 'linear' },
        ],
      },
      {
        path: 'lrSchedule.warmupSteps',
        label: 'Warm-up',
        input: 'integer',
        unit: 'steps',
        help: 'The rate rises in a line up to its own.',
      },
      ...forEach([{ lrSchedule: { kind: 'cosine' } }, { lrSchedule: { kind: 'linear' } }], {
        path: 'lrSchedule.minLr',
        label: 'Least learning rate',
        input: 'number',
        help: 'At the end of the run.',
      }),
    ],
  },
  {
    id: 'trainer',
    title: 'Trainer',
    about: 'Precision, accumulation, clipping, validation.',
    fields: [
      {
        path: 'precision',
        label: 'Precision',
        input: 'choice',
        choices: [
          { value: '32-true', label: '32-true' },
          { value: '16-mixed', label: '16-mixed' },
          { value: '16-true', label: '16-true' },
        ],
      },
      {
        path: 'trainer.accumulateGradBatches',
        label: 'Accumulate batches',
        input: 'integer',
        help: 'Micro-batches of one optimizer step; gradients are their mean.',
      },
      {
        path: 'trainer.syncEveryMicroBatch',
        of: { trainer: { accumulateGradBatches: 2 } },
        label: 'Reduce every micro-batch',
        input: 'switch',
        help: 'Off: whole gradients stay until the last one, and are reduced once.',
      },
      { path: 'trainer.gradientClipVal', label: 'Clip gradients at', input: 'number', none: 'off' },
      {
        path: 'trainer.gradientClipAlgorithm',
        of: { trainer: { gradientClipVal: 1 } },
        label: 'Clip by',
        input: 'choice',
        choices: [
          { value: 'norm', label: 'norm' },
          { value: 'value', label: 'value' },
        ],
      },
      {
        path: 'trainer.onNonFinite',
        label: 'On a loss that is not finite',
        input: 'choice',
        choices: [
          {
            value: 'stop',
            label: 'stop',
            hint: 'the weights stay those of the step before; with CPU offload, go on from a checkpoint',
          },
          { value: 'skip', label: 'skip the step', hint: 'on every rank, and train on' },
        ],
      },
      {
        path: 'trainer.validateEvery',
        label: 'Validate every',
        input: 'integer',
        unit: 'steps',
        none: 'never',
      },
      {
        path: 'trainer.validateBatches',
        of: { trainer: { validateEvery: 5 } },
        label: 'Validation batches',
        input: 'integer',
      },
    ],
  },
  {
    id: 'checkpoint',
    title: 'Checkpoint',
    about: 'When the run is saved, and as what.',
    fields: [
      { path: 'checkpoint.atEnd', label: 'Save at the end', input: 'switch' },
      {
        path: 'checkpoint.every',
        label: 'Save every',
        input: 'integer',
        unit: 'steps',
        none: 'only at the end',
      },
      { path: 'checkpoint.keepLast', label: 'Keep the last', input: 'integer', none: 'all' },
      {
        path: 'checkpoint.format',
        label: 'Format',
        input: 'choice',
        choices: [
          {
            value: null,
            label: 'automatic',
            hint: 'under DDP one full file; under FSDP what State dict says: sharded, unless it is set to full',
          },
          { value: 'full', label: 'full', hint: 'one file, gathered on rank 0: torch.load takes it' },
          {
            value: 'sharded',
            label: 'sharded',
            hint: 'a folder to which each rank writes its part: torch.distributed.checkpoint and fabric.load take it',
          },
          {
            value: 'safetensors',
            label: 'safetensors',
            hint: 'the weights alone, in one file: a run can start with them, not go on from them',
          },
        ],
      },
      { path: 'checkpoint.filter', label: 'Only these', input: 'names', none: 'everything' },
      {
        path: 'checkpoint.onSaveError',
        label: 'If a save fails',
        input: 'choice',
        choices: [
          { value: 'continue', label: 'train on' },
          { value: 'stop', label: 'stop' },
        ],
      },
      {
        path: 'checkpoint.resume',
        label: 'Resume from',
        input: 'file',
        upload: 'checkpoint',
        none: 'start anew',
        help: 'A checkpoint, or latest: that of the last run of this name.',
      },
      { path: 'checkpoint.strict', label: 'Refuse a partial load', input: 'switch' },
    ],
  },
];

/** Whether a field has a place in this draft: its section is of the field's kind. */
export function belongsTo(field: Field, draft: Draft): boolean {
  if (!field.of) return true;
  const { devices = 1, ...sections } = field.of;
  if (Number(devices) > 1 && Number(draft.devices) <= 1) return false;
  return Object.entries(sections).every(([section, wanted]) =>
    Object.entries(wanted as Record<string, unknown>).every(([key, value]) => {
      const at = (draft[section] as Record<string, unknown> | undefined)?.[key];
      if (key === 'kind') return at === value;
      // Beside the kind, `of` holds an example of what must be on: hybrid sharding, clipping, validation.
      if (key === 'accumulateGradBatches') return Number(at) > 1;
      return key === 'shardingStrategy' ? String(at).startsWith('HYBRID') : key === 'path' || (at ?? null) !== null;
    }),
  );
}
