import { describe, expect, it } from 'vitest';
import { checkConfig, ExperimentConfig } from '../../engine/config.ts';
import { defaultDraft, flatten, withKind } from './config-draft.ts';
import { belongsTo, builtGroups, comparableStrategies, FIELD_GROUPS } from './config-fields.ts';

const all = FIELD_GROUPS.flatMap(({ fields }) => fields);
const built = builtGroups().flatMap(({ fields }) => fields);

describe('the fields of the form', () => {
  it('name every leaf of the config, but parameter groups', () => {
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
    leaves.delete('optimizer.groups');
    expect(new Set(all.map(({ path }) => path))).toEqual(leaves);
  });

  it('offer nothing that the engine refuses as not built yet', () => {
    for (const field of built) {
      if (field.input !== 'choice' || field.path.endsWith('.kind')) continue;
      for (const { value } of field.choices) {
        const [section, key] = field.path.split('.');
        const config = key ? { [section]: { ...(field.of?.[section] as object), [key]: value } } : { [section]: value };
        const notBuilt = checkConfig(config).problems.filter(({ code }) => code === 'not-built-yet');
        expect(notBuilt, `${field.path}=${value}`).toEqual([]);
      }
    }
  });

  it('show each path at most once in a draft', () => {
    for (const kind of ['ddp', 'fsdp']) {
      const draft = withKind(defaultDraft(), 'strategy', kind);
      const paths = all.filter((field) => belongsTo(field, draft)).map(({ path }) => path);
      expect(new Set(paths).size).toBe(paths.length);
    }
  });

  it('compare DDP with FULL_SHARD at least', () => {
    const labels = comparableStrategies(defaultDraft()).map(({ label }) => label);
    expect(labels).toContain('DDP');
    expect(labels).toContain('FULL_SHARD');
  });
});
