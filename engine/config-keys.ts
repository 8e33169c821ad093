import type { z } from 'zod';
import { letters, nearestWord } from './nearest-word.ts';

type Schema = z.core.$ZodType;
type AnyDef = z.core.$ZodTypeDef & Readonly<Record<string, unknown>>;

/** A key of the schema, and the kind of its section that has it where not all have. */
interface Key {
  readonly name: string;
  /** Dotted; entries of a list have no number. */
  readonly path: string;
  readonly kind: string | null;
}

/**
 * What to say of a key that a section has not: the key that was probably meant, there or elsewhere, or the kind that has it.
 *
 * @param path of the section, as the schema's issue has it
 * @param section what was written there
 */
export function unknownKey(schema: Schema, path: readonly PropertyKey[], section: unknown, key: string): string {
  const place = path.filter((part) => typeof part === 'string').join('.');
  const all = allKeys(schema);
  const isHere = ({ path: at }: Key) => at === (place ? `${place}.` : '') + at.split('.').at(-1);
  const kind = (section as { kind?: unknown } | null)?.kind;
  const here = all.filter((each) => isHere(each) && (each.kind === null || each.kind === kind));
  const fabric = all.filter((each) => each.path === FABRIC_NAMES[letters(key)]).map((each) => each.path);
  if (fabric.length) return `unknown key. Did you mean ${inSection(fabric[0], place)}?`;
  const near = nearestWord(
    key,
    here.map(({ name }) => name),
  );
  if (near !== null) return `unknown key. Did you mean ${near}?`;
  const same = all.filter(({ name }) => letters(name) === letters(key) || (name.length > 1 && name === initials(key)));
  const kinds = same.filter((each) => isHere(each) && each.kind !== null).map((each) => each.kind);
  if (kinds.length) return `unknown key with ${place}.kind ${String(kind)}. It goes with ${kinds.join(', ')}`;
  const depth = (dotted: string) => dotted.split('.').length;
  const least = Math.min(...same.map((each) => depth(each.path)));
  const elsewhere = [...new Set(same.map((each) => each.path).filter((dotted) => depth(dotted) === least))];
  if (elsewhere.length) return `unknown key. Did you mean ${elsewhere.join(' or ')}?`;
  return 'unknown key. Check its spelling, or remove it';
}

/** The fields of what Fabric and Lightning call by another name; that as `letters` gives it. */
const FABRIC_NAMES: Readonly<Record<string, string | undefined>> = {
  maxsteps: 'trainer.steps',
  maxepochs: 'trainer.steps',
  accelerator: 'adapter',
  numnodes: 'devices',
  bf16: 'precision',
  fp16: 'precision',
  paramdtype: 'precision',
};

/** A dotted path as a section's own keys are named: by the key alone. */
function inSection(path: string, place: string): string {
  return place && path.startsWith(`${place}.`) ? path.slice(place.length + 1) : path;
}

/** learningRate and learning_rate: lr. */
function initials(key: string): string {
  return key
    .split(/[-_]|(?=[A-Z])/)
    .map((word) => word.slice(0, 1).toLowerCase())
    .join('');
}

const known = new WeakMap<Schema, readonly Key[]>();

/** All keys of a schema, walked once: a config may have many keys that are unknown. */
function allKeys(schema: Schema): readonly Key[] {
  const keys = known.get(schema) ?? keysOf(schema, '', null);
  known.set(schema, keys);
  return keys;
}

/** All keys of a schema, below a dotted path. */
function keysOf(schema: Schema, place: string, kind: string | null): Key[] {
  const def = schema._zod.def as AnyDef;
  const below = (inner: unknown) => keysOf(inner as Schema, place, kind);
  switch (def.type) {
    case 'object': {
      const shape = def.shape as Readonly<Record<string, Schema>>;
      const own = literalOf(shape.kind) ?? kind;
      return Object.entries(shape).flatMap(([name, inner]) => {
        const path = place ? `${place}.${name}` : name;
        return [{ name, path, kind: own }, ...keysOf(inner, path, null)];
      });
    }
    case 'union':
      return (def.options as readonly Schema[]).flatMap(below);
    case 'array':
      return below(def.element);
    case 'pipe':
      return [...below(def.in), ...below(def.out)];
    case 'default':
    case 'prefault':
    case 'nullable':
    case 'optional':
      return below(def.innerType);
    default:
      return [];
  }
}

/** The word of a literal. */
function literalOf(schema: Schema | undefined): string | null {
  const def = schema?._zod.def as AnyDef | undefined;
  return def?.type === 'literal' ? String((def.values as readonly unknown[])[0]) : null;
}
