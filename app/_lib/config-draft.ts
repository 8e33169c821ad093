import { parse, stringify, YAMLParseError } from 'yaml';
import { type ConfigProblem, checkConfig, ExperimentConfig, legalMeshes } from '../../engine/config.ts';

/**
 * A config while a person edits it: plain data in the config's shape, which may hold what is not legal (a word where a
 * number belongs). checkConfig says what is wrong with it; nothing here does.
 */
export type Draft = Readonly<Record<string, unknown>>;

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** The value at a dotted path; undefined where there is none. */
export function valueAt(draft: unknown, path: string): unknown {
  return path.split('.').reduce<unknown>((at, key) => (isRecord(at) ? at[key] : undefined), draft);
}

/** The draft with another value at a dotted path. Sections on the way are made if they are missing. */
export function withValue(draft: Draft, path: string, value: unknown): Draft {
  const [key, ...rest] = path.split('.');
  if (!rest.length) return { ...draft, [key]: value };
  const section = draft[key];
  return { ...draft, [key]: withValue(isRecord(section) ? section : {}, rest.join('.'), value) };
}

/**
 * The draft with one field changed, and what depends on it: a mesh and its link belong to the hybrid strategies alone, so
 * choosing one asks for a mesh with the first that the ranks can form, and leaving takes both away.
 */
export function withChange(draft: Draft, path: string, value: unknown): Draft {
  const changed = withValue(draft, path, value);
  if (path !== 'strategy.shardingStrategy') return changed;
  if (!String(value).startsWith('HYBRID'))
    return withValue(withValue(changed, 'strategy.deviceMesh', null), 'strategy.linkGBps', null);
  const [first = null] = legalMeshes(Number(valueAt(draft, 'devices')));
  return withValue(changed, 'strategy.deviceMesh', valueAt(draft, 'strategy.deviceMesh') ?? first);
}

/** A section of another kind: its defaults, and what it shares by name with the one before. */
export function withKind(draft: Draft, section: string, kind: string): Draft {
  const before = draft[section];
  const modelBefore = valueAt(draft, 'model.kind');
  const defaults = sectionDefaults(section, kind, modelBefore);
  const kept = isRecord(before) ? Object.entries(before).filter(([key]) => key !== 'kind' && key in defaults) : [];
  const after = { ...draft, [section]: { ...defaults, ...Object.fromEntries(kept) } };
  if (section !== 'model' || kind === modelBefore) return after;
  // The other model's classes are none of this one's: its blocks take their place. A size, or nothing, suits any model.
  return [WRAP_POLICY, CHECKPOINTING_POLICY].reduce<Draft>((changed, path) => {
    const classes = valueAt(draft, path);
    return Array.isArray(classes) && classes.length ? withValue(changed, path, wrapPolicyOf(kind)) : changed;
  }, after);
}

const WRAP_POLICY = 'strategy.autoWrapPolicy';
const CHECKPOINTING_POLICY = 'strategy.activationCheckpointingPolicy';

/** The one default that another section decides: the classes that FSDP wraps are the model's blocks. */
function wrapPolicyOf(modelKind: unknown): unknown {
  return valueAt(checkConfig({ model: { kind: modelKind }, strategy: 'fsdp' }).config ?? defaultDraft(), WRAP_POLICY);
}

function sectionDefaults(section: string, kind: string, modelKind: unknown): Record<string, unknown> {
  const schema = (ExperimentConfig.shape as Record<string, { safeParse(value: unknown): { data?: unknown } }>)[section];
  // A kind may ask for a path, which has no default.
  for (const [extra, shown] of [
    [{}, {}],
    [{ path: 'path' }, { path: '' }],
  ]) {
    const { data } = schema.safeParse({ kind, ...extra });
    if (!isRecord(data)) continue;
    return 'autoWrapPolicy' in data ? { ...data, autoWrapPolicy: wrapPolicyOf(modelKind) } : { ...data, ...shown };
  }
  return { kind };
}

/** A draft with every default filled in, from a config as a person writes it. What is not legal stays as it is. */
export function toDraft(config: unknown): Draft {
  const given = isRecord(config) ? config : {};
  const draft: Record<string, unknown> = {};
  for (const [key, schema] of Object.entries(ExperimentConfig.shape)) {
    const parsed = schema.safeParse(given[key]);
    draft[key] = parsed.success ? parsed.data : fillSection(key, given[key]);
  }
  const written = isRecord(given.strategy) && given.strategy.autoWrapPolicy !== undefined;
  if (!written && valueAt(draft, WRAP_POLICY) !== undefined) {
    const strategy = draft.strategy as Record<string, unknown>;
    draft.strategy = { ...strategy, autoWrapPolicy: wrapPolicyOf(valueAt(draft, 'model.kind')) };
  }
  for (const key of Object.keys(given)) if (!(key in draft)) draft[key] = given[key];
  return draft;
}

function fillSection(key: string, given: unknown): unknown {
  if (!isRecord(given)) return given;
  const defaults = 'kind' in given ? sectionDefaults(key, String(given.kind), null) : valueAt(defaultDraft(), key);
  return isRecord(defaults) ? { ...defaults, ...given } : given;
}

/**
 * All that is wrong with a draft. The engine looks for contradictions only between values that are legal by themselves:
 * where some are not, they are looked for once more with the defaults in their place.
 */
export function problemsOf(draft: Draft): ConfigProblem[] {
  const { problems } = checkConfig(draft);
  const wrong = new Set(problems.map(({ path }) => path));
  let mended = draft;
  for (const path of wrong) {
    const [section, key] = path.split('.');
    const kind = valueAt(draft, `${section}.kind`);
    const defaults =
      typeof kind === 'string'
        ? sectionDefaults(section, kind, valueAt(draft, 'model.kind'))
        : valueAt(defaultDraft(), section);
    const value = key === undefined ? defaults : isRecord(defaults) ? defaults[key] : undefined;
    if (value === undefined || value === '') return problems;
    mended = withValue(mended, key === undefined ? section : `${section}.${key}`, value);
  }
  return wrong.size ? [...problems, ...checkConfig(mended).problems.filter(({ path }) => !wrong.has(path))] : problems;
}

/** The config that a person gets who writes nothing. */
export function defaultDraft(): Draft {
  return ExperimentConfig.parse({});
}

/** The draft without what is its default anyway, in the config's order: what a person would write. */
export function withoutDefaults(draft: Draft): Draft {
  const result: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(draft)) {
    if (isRecord(value)) {
      const kind = typeof value.kind === 'string' ? value.kind : null;
      const defaults =
        kind === null ? valueAt(defaultDraft(), key) : sectionDefaults(key, kind, valueAt(draft, 'model.kind'));
      // The four sections that make the experiment say what they are, be it the default or not.
      const named = ['model', 'data', 'optimizer', 'strategy'].includes(key);
      const written = Object.entries(value).filter(
        ([name, field]) => (name === 'kind' && named) || !same(field, isRecord(defaults) ? defaults[name] : undefined),
      );
      if (written.length) result[key] = Object.fromEntries(written);
    } else if (key === 'name' || !same(value, defaultDraft()[key])) {
      result[key] = value;
    }
  }
  return result;
}

/** Whether two pieces of plain data say the same, whatever the order of their keys. */
export function same(a: unknown, b: unknown): boolean {
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((value, i) => same(value, b[i]));
  if (isRecord(a) && isRecord(b)) {
    const keys = Object.keys(a);
    return keys.length === Object.keys(b).length && keys.every((key) => key in b && same(a[key], b[key]));
  }
  return Object.is(a, b);
}

/** The config as YAML that `studio train` takes. */
export function toYaml(config: unknown): string {
  return stringify(config, { indent: 2, lineWidth: 100, flowCollectionPadding: true });
}

/** A draft from YAML or JSON text, or the sentence that says where it cannot be read. */
export function fromYaml(text: string): { draft: Draft; problem: null } | { draft: null; problem: string } {
  let value: unknown;
  try {
    value = parse(text, { maxAliasCount: 0 }) ?? {};
  } catch (error) {
    if (error instanceof YAMLParseError) {
      const line = error.linePos?.[0].line;
      return {
        draft: null,
        problem: `${line ? `Line ${line}: ` : ''}${error.message.split('\n')[0].replace(/ at line.*/, '')}`,
      };
    }
    return { draft: null, problem: error instanceof Error ? error.message : String(error) };
  }
  if (!isRecord(value)) return { draft: null, problem: 'A config is a list of keys and values, such as "devices: 2".' };
  return { draft: toDraft(value), problem: null };
}

/** Every leaf of a config by dotted path, arrays as one leaf. */
export function flatten(config: unknown, prefix = ''): Map<string, unknown> {
  const leaves = new Map<string, unknown>();
  if (!isRecord(config)) return leaves;
  for (const [key, value] of Object.entries(config)) {
    const path = prefix ? `${prefix}.${key}` : key;
    if (isRecord(value)) for (const [leaf, of] of flatten(value, path)) leaves.set(leaf, of);
    else leaves.set(path, value);
  }
  return leaves;
}

/** A config value on one line. */
export function formatConfigValue(value: unknown): string {
  if (value === undefined) return '–';
  if (value === null) return 'null';
  if (Array.isArray(value)) return value.length ? value.map(formatConfigValue).join(', ') : 'none';
  return isRecord(value) ? JSON.stringify(value) : String(value);
}
