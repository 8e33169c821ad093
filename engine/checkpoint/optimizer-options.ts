import { type PlainValue, type PyDict, type PyValue, toPlain } from './python-value.ts';

export type OptimizerKind = 'adam' | 'adamw' | 'sgd';

/** The options of a param_group in the config's terms. What the optimizer at hand does not have is at its default. */
export interface GroupOptions {
  readonly lr: number;
  readonly betas: readonly [number, number];
  readonly eps: number;
  readonly weightDecay: number;
  readonly momentum: number;
  readonly nesterov: boolean;
  readonly foreach: boolean | null;
}

/** The same with what was not as expected, each by torch's name. */
export interface ReadOptions {
  /** Which optimizers write options like these. Adam and AdamW cannot be told apart before torch 2.7. Empty: none of ours. */
  readonly kinds: readonly OptimizerKind[];
  readonly options: GroupOptions;
  /** Missing, so the default was taken: the file is of another version of torch. */
  readonly filled: readonly string[];
  /** Not known here, and not used. */
  readonly unknown: readonly string[];
  /** Known, and set to something that this engine does not compute. */
  readonly unsupported: readonly string[];
}

/** What torch 2.11 writes for each optimizer, with its default. null stands for None. */
const ADAM: Readonly<Record<string, PlainValue>> = {
  lr: 0.001,
  betas: [0.9, 0.999],
  eps: 1e-8,
  weight_decay: 0,
  amsgrad: false,
  maximize: false,
  foreach: null,
  capturable: false,
  differentiable: false,
  fused: null,
  decoupled_weight_decay: false,
};
const SGD: Readonly<Record<string, PlainValue>> = {
  lr: 0.001,
  momentum: 0,
  dampening: 0,
  weight_decay: 0,
  nesterov: false,
  maximize: false,
  foreach: null,
  differentiable: false,
  fused: null,
};
/** Options that change the result, with the only value that is computed here. */
const SUPPORTED: Readonly<Record<string, PlainValue>> = { amsgrad: false, maximize: false, dampening: 0 };
/** Written beside the options: the members, their names since torch 2.6, what a learning rate scheduler keeps. */
const NO_OPTIONS = new Set(['params', 'param_names', 'initial_lr']);

/** Reads the options of one param_group, of any version of torch. Values of a wrong type count as missing. */
export function readGroupOptions(group: PyDict): ReadOptions {
  const kinds = kindsOf(group);
  const known = kinds.includes('sgd') ? SGD : ADAM;
  const filled: string[] = [];
  const values: Record<string, PlainValue> = {};
  for (const [name, byDefault] of Object.entries(known)) {
    const value = plainOption(group.get(name));
    const usable = value !== undefined && sameType(value, byDefault);
    if (!usable) filled.push(name);
    values[name] = usable ? value : byDefault;
  }
  const names = [...group.keys()].map(String);
  const [beta1, beta2] = (values.betas ?? ADAM.betas) as [number, number];
  return {
    kinds,
    options: {
      lr: values.lr as number,
      betas: [beta1, beta2],
      eps: (values.eps ?? ADAM.eps) as number,
      weightDecay: values.weight_decay as number,
      momentum: (values.momentum ?? 0) as number,
      nesterov: values.nesterov === true,
      foreach: values.foreach as boolean | null,
    },
    filled,
    unknown: names.filter((name) => !Object.hasOwn(known, name) && !NO_OPTIONS.has(name)),
    unsupported: Object.keys(SUPPORTED).filter((name) => name in values && values[name] !== SUPPORTED[name]),
  };
}

function kindsOf(group: PyDict): OptimizerKind[] {
  if (group.has('betas') && group.has('eps') && !group.has('momentum_decay')) {
    const decoupled = group.get('decoupled_weight_decay');
    // RAdam has decoupled_weight_decay too, and no amsgrad.
    if (!group.has('amsgrad')) return [];
    return decoupled === undefined ? ['adam', 'adamw'] : [decoupled === true ? 'adamw' : 'adam'];
  }
  return group.has('momentum') && group.has('dampening') ? ['sgd'] : [];
}

function plainOption(value: PyValue | undefined): PlainValue | undefined {
  return value === undefined ? undefined : toPlain(value);
}

/** null stands for "torch decides", which a boolean decides too. */
function sameType(value: PlainValue, byDefault: PlainValue): boolean {
  if (Array.isArray(byDefault)) {
    return Array.isArray(value) && value.length === byDefault.length && value.every((item) => typeof item === 'number');
  }
  if (byDefault === null) return value === null || typeof value === 'boolean';
  return typeof value === typeof byDefault;
}
