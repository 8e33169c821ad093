import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { checkConfig, parseConfig } from './config.ts';
import { buildModel } from './model/build-model.ts';
import { compileRun } from './schedule/compile.ts';
import { compileFirst, smallShape } from './schedule/fixtures/small-runs.ts';
import { planExperiment } from './schedule/plan.ts';
import { builtInProfiles } from './schedule/profile.ts';

/**
 * What Fabric's FSDPStrategy refuses, warns of or does in silence, row by row:
 * refused here before anything starts, in words that name the person's own settings and the way out; or done right, so
 * that nothing is left to refuse; or without a setting in this config.
 */

const fsdp = (settings: object) => ({ strategy: { kind: 'fsdp', ...settings } });
const hybrid = (settings: object) => fsdp({ shardingStrategy: 'HYBRID_SHARD', ...settings });

interface Refused {
  readonly row: string;
  readonly config: object;
  /** Where it is said; null: only the plan knows, since it takes the model. */
  readonly at: string | null;
  /** What the message must say: the settings, and the way out. */
  readonly says: readonly RegExp[];
}

const refused: readonly Refused[] = [
  {
    row: '1.2 construct: HYBRID without a mesh (report 24)',
    config: { devices: 4, ...hybrid({}) },
    at: 'strategy.deviceMesh',
    says: [/HYBRID_SHARD needs \[replicate, shard\]/, /devices 4 can be \[2, 2\]/],
  },
  {
    row: '1.2 construct: HYBRID without a mesh, on ranks that make none',
    config: { devices: 3, ...hybrid({}) },
    at: 'strategy.deviceMesh',
    says: [/devices 3 has no two rows/, /use 4, 6 or 8 devices, or strategy.shardingStrategy FULL_SHARD/],
  },
  {
    row: '1.2 construct: unknown sharding strategy',
    config: fsdp({ shardingStrategy: 'ZERO3' }),
    at: 'strategy.shardingStrategy',
    says: [/"ZERO3" is none of FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, HYBRID_SHARD_ZERO2, NO_SHARD/],
  },
  {
    row: '1.2 construct: unknown strategy',
    config: { strategy: 'deepspeed' },
    at: 'strategy',
    says: [/one of ddp, fsdp, fsdp_cpu_offload/],
  },
  {
    row: '1.2 construct: unknown strategy, written out',
    config: { strategy: { kind: 'zero' } },
    at: 'strategy.kind',
    says: [/unknown kind. It is one of ddp, fsdp, fsdp_cpu_offload/],
  },
  {
    row: '1.2 construct: both activation checkpointing arguments',
    config: fsdp({ activationCheckpointing: ['TransformerEncoderLayer'] }),
    at: 'strategy.activationCheckpointing',
    says: [/unknown key/],
  },
  {
    row: '1.2 construct FSDPPrecision: 64-true',
    config: { precision: '64-true' },
    at: 'precision',
    says: [/"64-true" is none of 32-true, 16-mixed, 16-true/],
  },
  ...['bf16-mixed', 'bf16-true'].map((precision) => ({
    row: `1.2 construct FSDPPrecision: ${precision}, which WebGPU has not`,
    config: { precision },
    at: 'precision',
    says: [new RegExp(`${precision}: WebGPU has no bfloat16 arithmetic; use ${precision.replace('bf', '')}`)],
  })),
  {
    row: '1.2 setup_environment: mesh product above the world size, beside a policy (report 25)',
    config: { devices: 2, ...hybrid({ deviceMesh: [2, 2], autoWrapPolicy: ['Linear'] }) },
    at: 'strategy.deviceMesh',
    says: [/\[2, 2\] makes 4 ranks and devices is 2/, /use 4, 6 or 8 devices/],
  },
  {
    row: '1.2 setup_environment: mesh product below the world size',
    config: { devices: 4, ...hybrid({ deviceMesh: [1, 2] }) },
    at: 'strategy.deviceMesh',
    says: [/\[1, 2\] makes 2 ranks and devices is 4; devices 4 can be \[2, 2\]/],
  },
  {
    row: '1.2 clip_gradients: an algorithm without its value',
    config: { trainer: { gradientClipAlgorithm: 'value' } },
    at: 'trainer.gradientClipVal',
    says: [/gradientClipAlgorithm value clips at nothing/, /leave the algorithm out/],
  },
  {
    row: '1.2 clip_gradients: both clip_val and max_norm',
    config: { trainer: { maxNorm: 1, gradientClipVal: 1 } },
    at: 'trainer.maxNorm',
    says: [/unknown key/],
  },
  {
    row: '1.2 save: filter with sharded',
    config: { checkpoint: { format: 'sharded', filter: ['*.weight'] } },
    at: 'checkpoint.filter',
    says: [/checkpoint.format full or safetensors, or remove the filter/],
  },
  {
    row: '1.1 state_dict_type is not checked before the save',
    config: fsdp({ stateDictType: 'local' }),
    at: 'strategy.stateDictType',
    says: [/"local" is none of full, sharded/],
  },
  {
    row: '1.1 cpu_offload: the string "no" turns it on',
    config: fsdp({ cpuOffload: 'no' }),
    at: 'strategy.cpuOffload',
    says: [/is true or false, not "no"/],
  },
  {
    row: '1.1 auto_wrap_policy that is neither a set nor a policy is accepted',
    config: fsdp({ autoWrapPolicy: 'TransformerEncoderLayer' }),
    at: 'strategy.autoWrapPolicy',
    says: [/a list of class names, \{ minNumParams: … \}, or null/],
  },
  {
    row: '1.1 kwargs: unknown names are accepted until setup',
    config: fsdp({ syncModuleStates: true }),
    at: 'strategy.syncModuleStates',
    says: [/unknown key/],
  },
  {
    row: '1.3 device_mesh with a strategy that is not hybrid (report 55)',
    config: { devices: 4, ...fsdp({ deviceMesh: [2, 2] }) },
    at: 'strategy.deviceMesh',
    says: [/\[2, 2\] is for HYBRID_SHARD: with FULL_SHARD/, /Remove it, or choose .* HYBRID_SHARD/],
  },
  {
    row: '1.3 HYBRID with a row of one rank',
    config: { devices: 4, ...hybrid({ deviceMesh: [4, 1] }) },
    at: 'strategy.deviceMesh',
    says: [/\[4, 1\] has rows of one rank/, /\[2, 2\]/, /use ddp/],
  },
  {
    row: 'a class of the wrap policy that matches nothing',
    config: fsdp({ autoWrapPolicy: ['GPT2Block'] }),
    at: null,
    says: [/strategy.autoWrapPolicy: GPT2Block matches no module of this model. It has .*TransformerEncoderLayer/],
  },
  {
    row: 'a class of the checkpointing policy that matches nothing',
    config: fsdp({ activationCheckpointingPolicy: ['GPT2Block'] }),
    at: null,
    says: [/strategy.activationCheckpointingPolicy: GPT2Block matches no module/],
  },
  {
    row: 'a class of the checkpointing policy that is no block (children of a layer would each keep their input)',
    config: fsdp({ activationCheckpointingPolicy: ['Linear'] }),
    at: null,
    says: [/Linear is not a block of this model; checkpoint TransformerEncoderLayer or TransformerDecoderLayer/],
  },
  {
    row: 'a freeze pattern that fits no parameter',
    config: { model: { kind: 'demo-transformer', vocabSize: 11, freeze: ['wte.*'] } },
    at: null,
    says: [/model.freeze: wte\.\* fits no parameter. A name is, for example, embedding.weight/],
  },
  {
    row: 'everything frozen',
    config: { model: { kind: 'demo-transformer', vocabSize: 11, freeze: ['*'] } },
    at: null,
    says: [/model.freeze: every parameter is frozen/],
  },
  {
    row: 'an optimizer group that fits no parameter',
    config: { optimizer: { kind: 'adam', groups: [{ match: 'head.*', lr: 1 }] } },
    at: null,
    says: [/optimizer.groups: head\.\* fits no parameter. A name is, for example, embedding.weight/],
  },
  {
    row: 'a checkpoint filter that fits no parameter',
    config: { checkpoint: { format: 'full', filter: ['*.nothing'] } },
    at: null,
    says: [/checkpoint.filter: \*\.nothing fits no parameter. A name is, for example, embedding.weight/],
  },
  {
    row: 'an optimizer group that changes nothing',
    config: { optimizer: { kind: 'adam', groups: [{ match: '*' }] } },
    at: 'optimizer.groups.0',
    says: [/\* changes nothing: give it an lr or a weightDecay/],
  },
  {
    row: 'a warm-up longer than the run',
    config: { lrSchedule: { warmupSteps: 20 }, trainer: { steps: 10 } },
    at: 'lrSchedule.warmupSteps',
    says: [/20 steps does not end within trainer.steps 10/, /shorten it, or train longer/],
  },
  {
    row: 'a least learning rate above the rate',
    config: { lrSchedule: { kind: 'cosine', minLr: 1 }, optimizer: { kind: 'adam', lr: 0.1 } },
    at: 'lrSchedule.minLr',
    says: [/1 is above optimizer.lr 0.1/],
  },
  {
    row: 'a link between rows where there is one row',
    config: fsdp({ linkGBps: 1 }),
    at: 'strategy.linkGBps',
    says: [/FULL_SHARD makes one row/, /HYBRID_SHARD with a deviceMesh of two rows/],
  },
  {
    row: 'weights from two places',
    config: { init: { from: 'a.pt' }, checkpoint: { resume: 'latest' } },
    at: 'init.from',
    says: [/checkpoint.resume brings the weights too/],
  },
  {
    row: 'Nesterov without momentum',
    config: { optimizer: { kind: 'sgd', nesterov: true } },
    at: 'optimizer.nesterov',
    says: [/needs optimizer.momentum above 0/],
  },
];

describe('refused before anything starts', () => {
  it.each(refused)('$row', ({ config, at, says }) => {
    if (at === null) {
      const compile = () => compileFirst({ config });
      for (const words of says) expect(compile).toThrow(words);
      return;
    }
    const problem = checkConfig(config).problems.find(({ path }) => path === at);
    expect(problem?.code, JSON.stringify(checkConfig(config).problems)).toBe('invalid-config');
    for (const words of says) expect(problem!.message).toMatch(words);
    expect(() => parseConfig(config)).toThrow(`${at}: ${problem!.message}`);
  });

  it('never in the words of the schema’s library', () => {
    for (const { config } of refused)
      for (const { message } of checkConfig(config).problems) expect(message).not.toMatch(/^(Invalid|Too |Expected)/);
  });
});

/** Rows of which nothing is left to refuse: the combination is legal and right. */
const right: Readonly<Record<string, object>> = {
  '1.2 mixed requires_grad in one unit: its trainable and its frozen part are two groups': {
    model: {
      kind: 'demo-transformer',
      vocabSize: 11,
      ninp: 6,
      nhead: 3,
      nhid: 10,
      nlayers: 1,
      freeze: ['*.norm1.*', '*.linear1.weight'],
    },
  },
  '1.2 tied parameters in different units: they live in the lowest unit that contains both': {
    model: { kind: 'gpt2', vocabSize: 11, nLayer: 1, nHead: 2, nEmbd: 8, nPositions: 64 },
    ...fsdp({ autoWrapPolicy: ['GPT2Block', 'Embedding'] }),
  },
  '1.2 shard group of one rank: becomes NO_SHARD': { devices: 1 },
  '1.2 NO_SHARD of several ranks: deprecated in PyTorch, whole here': fsdp({ shardingStrategy: 'NO_SHARD' }),
  '1.1 names in any case, and with Fabric’s underscore': {
    devices: 4,
    ...fsdp({ shardingStrategy: '_hybrid_shard_zero2', deviceMesh: [2, 2] }),
  },
  '1.2 no_backward_sync on DDP and FSDP alike': {
    trainer: { accumulateGradBatches: 2 },
    strategy: 'ddp',
  },
  '1.3 HYBRID with fewer ranks than GPUs: the mesh counts ranks of the run': {
    devices: 4,
    ...hybrid({ deviceMesh: [2, 2] }),
  },
};

describe('legal here', () => {
  it.each(Object.entries(right))('%s', (_, config) => {
    const parsed = parseConfig({ model: { kind: 'demo-transformer', vocabSize: 11 }, ...config });
    const model = buildModel(parsed.model, null);
    const run = compileRun({
      config: parsed,
      model,
      shapes: [smallShape],
      rank: 0,
      profile: builtInProfiles.interpreter,
    });
    expect(run.memory.reservedBytes).toBeGreaterThan(0);
  });

  it('1.2 0-dim parameters and mixed dtypes in one unit: no model has any', () => {
    for (const kind of ['demo-transformer', 'gpt2', 'llama']) {
      const { parameters } = buildModel(parseConfig({ model: { kind, vocabSize: 11 } }).model, null);
      for (const { shape } of parameters) expect(shape.length).toBeGreaterThan(0);
    }
  });
});

/** Rows about what a run does rather than what a config says: the test that holds each, by its file and its name. */
const elsewhere: Readonly<Record<string, readonly [file: string, test: string]>> = {
  '1.2 load: no checkpoint at the path, a folder without .metadata and meta.pt': [
    'node/no-checkpoint.test.ts',
    'to go on from %s is refused in words',
  ],
  '1.2 load (strict): a key that is missing': [
    'node/resume.test.ts',
    'another model; not strict, what is missing is initialised and both are listed (52)',
  ],
  '1.3 clipping by norm: one norm, before clipping, on every rank': [
    'node/statements.test.ts',
    '14, 15: every rank reports the same norm, so that there is one number, %s',
  ],
  '1.3 clipping by norm and by value: what they take of a gradient': [
    'node/statements.test.ts',
    'what SGD takes is the gradient times min(1, value / (norm + 1e-6)), or each element within ± value',
  ],
  '1.3 clipping by norm: whole parameters counted once (report 13)': [
    'node/statements.test.ts',
    '13: the global norm is equal over all strategies',
  ],
  '1.3 error_if_nonfinite is dropped (report 57)': [
    'node/statements.test.ts',
    'stops on every rank before anything is updated, %s',
  ],
  '1.3 accumulation, and with offload outside no_sync (report 18)': [
    'node/statements.test.ts',
    '18: k micro-batches are one big batch, %s',
  ],
  '1.3 accumulation: whole gradients stay inside no_sync (report 19)': [
    'node/statements.test.ts',
    '19: both modes are offered; without reductions in between whole gradients stay, and the plan shows them',
  ],
  '1.3 shards may be empty, their gradients None': [
    'node/same-mathematics.test.ts',
    'more ranks than rows: most shards of the small parameters are empty',
  ],
  '1.3 *-mixed keeps float32 weights, *-true does not, whatever its warning says': [
    'node/precision.test.ts',
    '49: 16-mixed shows the drop that it should',
  ],
};

/** Rows without a setting here, and why. */
const notApplicable: Readonly<Record<string, string>> = {
  '1.2 construct: process_group and device_mesh': 'ranks are grouped by deviceMesh alone',
  '1.2 construct: wrong precision plugin class': 'precision is a word',
  '1.2 any time: checkpoint_io': 'there is no such object to read or set',
  '1.2 setup, FSDP ctor, setup_optimizers: use_orig_params=False (three rows)':
    'parameters are always the original ones',
  '1.2 setup: optimizer refers to meta parameters': 'the optimizer is made from the config, after the shards',
  '1.2 setup_module: model already has FSDP children': 'a model is wrapped by the policy alone',
  '1.2 FSDP ctor: sync_module_states with CPU parameters': 'values are a function of seed, name and index',
  '1.2 clip by norm, no_backward_sync: root is not FSDP': 'there is one root, and it is a unit',
  '1.2 save: storage_options': 'checkpoints are files in the run’s folder',
  '1.2 save: full onto a folder that is no checkpoint': 'a run names its own checkpoints',
  '1.2 save / load: zero or several FSDP models': 'a checkpoint holds the run’s one model and optimizer',
  '1.2 load: empty state': 'what is loaded is what the config describes, never empty',
  '1.2 load: a bare optimizer': 'an optimizer is loaded with its model',
  '1.2 load: a bare module from a folder': 'weights load from a sharded folder as from any other form',
  '1.3 sync_module_states under hybrid': 'as above: all replicas compute the same values',
  '1.3 reduce_dtype, keep_low_precision_grads': 'precision is one word, which says what gradients travel as',
  '1.3 inputs are cast': 'a model’s inputs are token ids',
  '1.3 a user’s GradScaler is never used': 'there is one scaler, the engine’s',
  '1.3 pre-division of gradients': 'ranks are added in one tree in float32, then multiplied once',
  '1.3 names with _fsdp_wrapped_module': 'parameters are not renamed, and are counted whole',
  '1.3 order of convert, wrap, checkpoint': 'the passes run in one fixed order',
};

describe('the rows of what Fabric refuses', () => {
  const legalForAll = ['1.2 0-dim parameters and mixed dtypes in one unit: no model has any'];
  const rows = [
    ...refused.map(({ row }) => row),
    ...Object.keys(right),
    ...legalForAll,
    ...Object.keys(elsewhere),
    ...Object.keys(notApplicable),
  ];

  it('are in one table each, and those that are not applicable say why', () => {
    expect(new Set(rows).size).toBe(rows.length);
    for (const [row, why] of Object.entries(notApplicable)) expect(why, row).toMatch(/\w+ \w+/);
  });

  it('are these and no others: all rows of section 1.2, all bullets of 1.3', () => {
    expect(rows.filter((row) => /^1\.[23] /.test(row)).sort()).toEqual([
      '1.2 0-dim parameters and mixed dtypes in one unit: no model has any',
      '1.2 FSDP ctor: sync_module_states with CPU parameters',
      '1.2 NO_SHARD of several ranks: deprecated in PyTorch, whole here',
      '1.2 any time: checkpoint_io',
      '1.2 clip by norm, no_backward_sync: root is not FSDP',
      '1.2 clip_gradients: an algorithm without its value',
      '1.2 clip_gradients: both clip_val and max_norm',
      '1.2 construct FSDPPrecision: 64-true',
      '1.2 construct FSDPPrecision: bf16-mixed, which WebGPU has not',
      '1.2 construct FSDPPrecision: bf16-true, which WebGPU has not',
      '1.2 construct: HYBRID without a mesh (report 24)',
      '1.2 construct: HYBRID without a mesh, on ranks that make none',
      '1.2 construct: both activation checkpointing arguments',
      '1.2 construct: process_group and device_mesh',
      '1.2 construct: unknown sharding strategy',
      '1.2 construct: unknown strategy',
      '1.2 construct: unknown strategy, written out',
      '1.2 construct: wrong precision plugin class',
      '1.2 load (strict): a key that is missing',
      '1.2 load: a bare module from a folder',
      '1.2 load: a bare optimizer',
      '1.2 load: empty state',
      '1.2 load: no checkpoint at the path, a folder without .metadata and meta.pt',
      '1.2 mixed requires_grad in one unit: its trainable and its frozen part are two groups',
      '1.2 no_backward_sync on DDP and FSDP alike',
      '1.2 save / load: zero or several FSDP models',
      '1.2 save: filter with sharded',
      '1.2 save: full onto a folder that is no checkpoint',
      '1.2 save: storage_options',
      '1.2 setup, FSDP ctor, setup_optimizers: use_orig_params=False (three rows)',
      '1.2 setup: optimizer refers to meta parameters',
      '1.2 setup_environment: mesh product above the world size, beside a policy (report 25)',
      '1.2 setup_environment: mesh product below the world size',
      '1.2 setup_module: model already has FSDP children',
      '1.2 shard group of one rank: becomes NO_SHARD',
      '1.2 tied parameters in different units: they live in the lowest unit that contains both',
      '1.3 *-mixed keeps float32 weights, *-true does not, whatever its warning says',
      '1.3 HYBRID with a row of one rank',
      '1.3 HYBRID with fewer ranks than GPUs: the mesh counts ranks of the run',
      '1.3 a user’s GradScaler is never used',
      '1.3 accumulation, and with offload outside no_sync (report 18)',
      '1.3 accumulation: whole gradients stay inside no_sync (report 19)',
      '1.3 clipping by norm and by value: what they take of a gradient',
      '1.3 clipping by norm: one norm, before clipping, on every rank',
      '1.3 clipping by norm: whole parameters counted once (report 13)',
      '1.3 device_mesh with a strategy that is not hybrid (report 55)',
      '1.3 error_if_nonfinite is dropped (report 57)',
      '1.3 inputs are cast',
      '1.3 names with _fsdp_wrapped_module',
      '1.3 order of convert, wrap, checkpoint',
      '1.3 pre-division of gradients',
      '1.3 reduce_dtype, keep_low_precision_grads',
      '1.3 shards may be empty, their gradients None',
      '1.3 sync_module_states under hybrid',
    ]);
  });

  it.each(Object.entries(elsewhere))('%s: its test is there', (_, [file, test]) => {
    const source = readFileSync(new URL(file, import.meta.url), 'utf8');
    expect(source).toContain(`'${test}'`);
  });
});

describe('values of no sense', () => {
  it('a kind that is no text is an unknown kind, not a crash', () => {
    for (const kind of [{ toString: 1 }, ['gpt2'], 7, null]) {
      const { problems } = checkConfig({ model: { kind } });
      expect(problems.map((p) => p.path)).toEqual(['model.kind']);
    }
    expect(checkConfig({ model: { kind: 'toString' } }).problems.map((p) => p.path)).toEqual(['model.kind']);
  });

  it('a unit over the elements that a kernel can index names the settings', () => {
    const config = parseConfig({
      model: { kind: 'gpt2', nLayer: 1, nHead: 1, nEmbd: 16_384, nPositions: 1_048_576, vocabSize: 4_000_000 },
    });
    expect(() => planExperiment(config, builtInProfiles.interpreter)).toThrow(
      expect.objectContaining({ code: 'invalid-config', message: expect.stringContaining('autoWrapPolicy') }),
    );
  });
});
