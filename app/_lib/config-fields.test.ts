import { describe, expect, it } from 'vitest';
import { ExperimentConfig } from '../../engine/config.ts';
import { defaultDraft, flatten, problemsOf, valueAt, withChange, withKind, withValue } from './config-draft.ts';
import { belongsTo, FIELD_GROUPS } from './config-fields.ts';

const all = FIELD_GROUPS.flatMap(({ fields }) => fields);

describe('the fields of the form', () => {
  it('name every leaf of the config', () => {
    const kinds = {
      model: ['demo-transformer', 'gpt2', 'llama'],
      data: ['moby-dick', 'wikitext2', 'batches'],
      optimizer: ['adam', 'adamw', 'sgd'],
      strategy: ['ddp', 'fsdp'],
    };
    const leaves = new Set(flatten(ExperimentConfig.parse({})).keys());
    for (const [section, names] of Object.entries(kinds))
      for (const kind of names)
        for (const leaf of flatten(withKind(defaultDraft(), section, kind)).keys()) leaves.add(leaf);
    expect(new Set(all.map(({ path }) => path))).toEqual(leaves);
  });

  it('show each path at most once in a draft', () => {
    for (const kind of ['ddp', 'fsdp']) {
      const draft = withKind(defaultDraft(), 'strategy', kind);
      const paths = all.filter((field) => belongsTo(field, draft)).map(({ path }) => path);
      expect(new Set(paths).size).toBe(paths.length);
    }
  });

  it('asks what gradients travel as only where they travel', () => {
    const field = all.find(({ path }) => path === 'strategy.mixedPrecision.reduceDtype')!;
    const shown = [1, 2].map((devices) => belongsTo(field, withValue(defaultDraft(), 'devices', devices)));
    expect(shown).toEqual([false, true]);
    expect(belongsTo(field, withKind(defaultDraft(), 'strategy', 'ddp'))).toBe(false);
  });

  it('24: choosing HYBRID asks for the mesh, with one that the ranks can form; leaving it takes mesh and link away', () => {
    const field = all.find(({ path }) => path === 'strategy.deviceMesh')!;
    const start = withValue(defaultDraft(), 'devices', 4);
    expect(belongsTo(field, start)).toBe(false);
    for (const name of ['HYBRID_SHARD', 'HYBRID_SHARD_ZERO2']) {
      const hybrid = withChange(start, 'strategy.shardingStrategy', name);
      expect(belongsTo(field, hybrid)).toBe(true);
      expect(valueAt(hybrid, 'strategy.deviceMesh')).toEqual([2, 2]);
      expect(problemsOf(hybrid)).toEqual([]);
      const linked = withChange(hybrid, 'strategy.linkGBps', 5);
      const left = withChange(linked, 'strategy.shardingStrategy', 'FULL_SHARD');
      expect([valueAt(left, 'strategy.deviceMesh'), valueAt(left, 'strategy.linkGBps')]).toEqual([null, null]);
      expect(problemsOf(left)).toEqual([]);
    }
    // Ranks that form none: the field says so in its place.
    const odd = withChange(withValue(start, 'devices', 3), 'strategy.shardingStrategy', 'HYBRID_SHARD');
    expect(problemsOf(odd).map(({ path }) => path)).toEqual(['strategy.deviceMesh']);
  });
});
