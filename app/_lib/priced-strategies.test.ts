import { expect, it } from 'vitest';
import { checkConfig } from '../../engine/config.ts';
import { planExperiment } from '../../engine/schedule/plan.ts';
import { builtInProfiles } from '../../engine/schedule/profile.ts';
import {
  type Draft,
  defaultDraft,
  problemsOf,
  toDraft,
  valueAt,
  withChange,
  withKind,
  withValue,
} from './config-draft.ts';
import { comparableStrategies } from './priced-strategies.ts';

const planOf = (draft: Draft) => {
  const { config, problems } = checkConfig(draft);
  if (!config) throw new Error(JSON.stringify(problems));
  const { peakBytes, liveBytes, hostBytes, estimateMs, byCategory } = planExperiment(config, builtInProfiles.h200);
  return { peakBytes, liveBytes, hostBytes, estimateMs, byCategory };
};

/** What a person does in the form to have a strategy by its label. */
function clicked(draft: Draft, label: string): Draft {
  const [name, offload] = label.split(', ');
  const kind = name === 'DDP' ? 'ddp' : 'fsdp';
  const ofKind = valueAt(draft, 'strategy.kind') === kind ? draft : withKind(draft, 'strategy', kind);
  if (kind === 'ddp') return ofKind;
  return withValue(withChange(ofKind, 'strategy.shardingStrategy', name), 'strategy.cpuOffload', offload !== undefined);
}

const blocks = ['TransformerEncoderLayer', 'TransformerDecoderLayer'];
const small = {
  model: { kind: 'demo-transformer', vocabSize: 97, ninp: 64, nhead: 2, nhid: 256, nlayers: 2 },
  devices: 4,
};
const drafts: Record<string, object> = {
  'DDP with checkpointing': { strategy: { kind: 'ddp', activationCheckpointingPolicy: blocks } },
  'FULL_SHARD with checkpointing': { strategy: { kind: 'fsdp', activationCheckpointingPolicy: blocks } },
  'FULL_SHARD with offload': { strategy: { kind: 'fsdp', cpuOffload: true, activationCheckpointingPolicy: blocks } },
  'hybrid on a mesh': {
    strategy: { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2], backwardPrefetch: null },
  },
  'mixed precision, one unit': { precision: '16-mixed', strategy: { kind: 'fsdp', autoWrapPolicy: null } },
};

it.each(Object.entries(drafts))('each row is the plan of the draft with that strategy chosen: %s', (_, config) => {
  const draft = toDraft({ ...small, ...config });
  const rows = comparableStrategies(draft);
  expect(rows.length).toBe(7);
  expect(new Set(rows.map(({ label }) => label)).size).toBe(rows.length);
  for (const { label, strategy } of rows)
    expect(planOf({ ...draft, strategy }), label).toEqual(planOf(clicked(draft, label)));
  // One row is the draft as it is.
  expect(rows.filter(({ strategy }) => JSON.stringify(strategy) === JSON.stringify(draft.strategy))).toHaveLength(1);
});

it('activation checkpointing stays across DDP and FSDP, with what it saves', () => {
  const data = { kind: 'moby-dick', batchSize: 32 };
  const [plain, checkpointed] = [[], blocks].map((activationCheckpointingPolicy) => {
    const draft = toDraft({ ...small, data, strategy: { kind: 'ddp', activationCheckpointingPolicy } });
    return comparableStrategies(draft).map(({ strategy }) => planOf({ ...draft, strategy }).liveBytes);
  });
  for (const [i, bytes] of checkpointed.entries()) expect(bytes).toBeLessThan(plain[i]);
});

it('compares DDP with FULL_SHARD at least, and every strategy that the ranks can form is legal', () => {
  for (const devices of [1, 2, 3, 4, 6, 8])
    for (const shardingStrategy of ['FULL_SHARD', 'HYBRID_SHARD']) {
      const start = withValue(defaultDraft(), 'devices', devices);
      const draft = withChange(start, 'strategy.shardingStrategy', shardingStrategy);
      if (problemsOf(draft).length) continue;
      const rows = comparableStrategies(draft);
      for (const { strategy } of rows)
        expect(problemsOf({ ...draft, strategy }), JSON.stringify({ devices, strategy })).toEqual([]);
      expect(rows.map(({ label }) => label)).toEqual(expect.arrayContaining(['DDP', 'FULL_SHARD']));
    }
});
