import { StudioError } from '../errors.ts';
import type { Model } from '../model/model.ts';
import { didYouMean } from '../nearest-word.ts';
import { elementsOf } from '../ops/graph.ts';

/** Class names, a size rule, or nothing: which modules are units of their own. */
export type WrapPolicy = readonly string[] | { readonly minNumParams: number } | null;

/** Classes that PyTorch's size rule never looks into, and never wraps. */
const FORCE_LEAF = new Set(['MultiheadAttention']);
const NEVER_WRAPPED = new Set(['ModuleList', 'ModuleDict']);

/**
 * Paths of the modules that a policy wraps, the root left out, in the order of the model's modules. Throws StudioError
 * `invalid-config` for a class that matches no module.
 */
export function wrappedPaths(model: Model, policy: WrapPolicy): string[] {
  if (policy === null) return [];
  if ('minNumParams' in policy) return sizeWrapped(model, policy.minNumParams);
  return modulesOfClasses(model, policy, 'strategy.autoWrapPolicy');
}

/** Paths of the modules of these classes, the root left out. `setting` is named where a class matches none. */
export function modulesOfClasses(model: Model, classNames: readonly string[], setting: string): string[] {
  const classes = [...new Set(model.modules.map((m) => m.className))];
  const unknown = classNames.filter((name) => !classes.includes(name));
  if (unknown.length)
    throw new StudioError(
      'invalid-config',
      `${setting}: ${unknown.join(', ')} matches no module of this model. It has ${classes.join(', ')}${didYouMean(unknown[0], classes)}`,
    );
  return model.modules.filter((m) => m.path !== '' && classNames.includes(m.className)).map((m) => m.path);
}

/**
 * torch.distributed.fsdp.wrap.size_based_auto_wrap_policy: bottom-up, a module is wrapped when what its wrapped children
 * leave of it has at least `minNumParams` elements.
 */
function sizeWrapped(model: Model, minNumParams: number): string[] {
  const wrapped = new Set<string>();
  const inside = (path: string, name: string) => path === '' || name.startsWith(`${path}.`);
  const numel = (path: string) =>
    model.parameters.reduce((sum, p) => sum + (inside(path, p.name) ? elementsOf(p.shape) : 0), 0);
  const childrenOf = (path: string) =>
    model.modules.filter((m) => m.path !== path && inside(path, m.path) && parentOf(model, m.path) === path);
  const visit = (path: string, className: string): number => {
    const all = numel(path);
    if (all < minNumParams || FORCE_LEAF.has(className)) return 0;
    const below = childrenOf(path).reduce((sum, child) => sum + visit(child.path, child.className), 0);
    if (path === '' || all - below < minNumParams || NEVER_WRAPPED.has(className)) return below;
    wrapped.add(path);
    return all;
  };
  visit('', model.modules[0].className);
  return model.modules.map((m) => m.path).filter((path) => wrapped.has(path));
}

/** The module that directly contains another. */
function parentOf(model: Model, path: string): string {
  const candidates = model.modules.map((m) => m.path).filter((p) => p === '' || path.startsWith(`${p}.`));
  return candidates.reduce((longest, p) => (p.length >= longest.length ? p : longest), '');
}
