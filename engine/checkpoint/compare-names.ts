import { StudioError } from '../errors.ts';
import type { StoredCheckpoint } from './stored-checkpoint.ts';
import type { StoredOptimizer } from './stored-optimizer.ts';

/** A parameter of the model that is to be filled. */
export interface ExpectedParameter {
  readonly name: string;
  readonly shape: readonly number[];
  /** The name whose tensor this is too; either of them will do. */
  readonly tiedTo?: string;
  /** Has no optimizer state. */
  readonly frozen?: boolean;
}

export interface WrongShape {
  readonly name: string;
  readonly expected: readonly number[];
  readonly found: readonly number[];
}

/** How the names of a checkpoint and of a model differ. */
export interface NameComparison {
  /** In the model and not in the checkpoint. */
  readonly missing: readonly string[];
  /** In the checkpoint and not in the model. */
  readonly unexpected: readonly string[];
  readonly wrongShapes: readonly WrongShape[];
  /** `name: part` of optimizer state that is not there. */
  readonly missingState: readonly string[];
}

/** Holds the names and shapes of a checkpoint against those of a model. */
export function compareNames(
  { model }: Pick<StoredCheckpoint, 'model'>,
  expected: readonly ExpectedParameter[],
): NameComparison {
  const names = new Set(expected.map(({ name }) => name));
  const missing: string[] = [];
  const wrongShapes: WrongShape[] = [];
  for (const { name, shape, tiedTo } of expected) {
    const found = model.get(name)?.shape;
    const elsewhere = tiedTo !== undefined && model.has(tiedTo);
    if (!found && !elsewhere) missing.push(name);
    else if (found && found.join() !== shape.join()) wrongShapes.push({ name, expected: shape, found });
  }
  const unexpected = [...model.keys()].filter((name) => !names.has(name));
  return { missing, unexpected, wrongShapes, missingState: [] };
}

/** The same with the parts of the state that each trainable parameter must have (torch's names, `step` among them). */
export function compareOptimizerState(
  comparison: NameComparison,
  optimizer: StoredOptimizer,
  expected: readonly ExpectedParameter[],
  parts: readonly string[],
): NameComparison {
  const missingState: string[] = [];
  for (const { name, tiedTo, frozen } of expected) {
    if (frozen || tiedTo !== undefined) continue;
    const found = optimizer.parts(name);
    for (const part of parts) if (!found.includes(part)) missingState.push(`${name}: ${part}`);
  }
  return { ...comparison, missingState };
}

/**
 * Throws one 'bad-data' that counts, and names the first of, all that is of another shape, missing and unexpected. Not strict, names may be missing or
 * unexpected (the caller lists them and initialises what is missing); another shape is refused even then.
 */
export function refuseDifferences(file: string, comparison: NameComparison, strict: boolean): void {
  const { missing, unexpected, wrongShapes, missingState } = comparison;
  const shapes = wrongShapes.map(({ name, expected, found }) => `${name} is [${found}] and should be [${expected}]`);
  const parts = [
    list('of another shape', shapes),
    ...(strict ? [list('missing', missing), list('unexpected', unexpected), list('without state', missingState)] : []),
  ].filter((part) => part !== '');
  if (parts.length === 0) return;
  const hint = strict && wrongShapes.length === 0 ? ' Set checkpoint.strict to false to load what fits.' : '';
  throw new StudioError('bad-data', `${file} does not fit this run: ${parts.join('; ')}.${hint}`, {
    file,
    ...comparison,
  });
}

const SHOWN = 3;

function list(what: string, items: readonly string[]): string {
  const more = items.length > SHOWN ? `, and ${items.length - SHOWN} more` : '';
  return items.length === 0 ? '' : `${items.length} ${what} (${items.slice(0, SHOWN).join(', ')}${more})`;
}
