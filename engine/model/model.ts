import { StudioError } from '../errors.ts';
import type { Graph, Value } from '../ops/graph.ts';

/**
 * How a parameter starts: bounds as PyTorch's own initialisers compute them. `uniform` is ±bound, `normal` is N(0, 1) × std.
 */
export type Init =
  | { readonly kind: 'uniform'; readonly bound: number }
  | { readonly kind: 'normal'; readonly std: number }
  | { readonly kind: 'constant'; readonly value: number };

export interface ParameterSpec {
  /** state_dict name. */
  readonly name: string;
  readonly shape: readonly number[];
  readonly init: Init;
}

export interface ModuleSpec {
  /** Dotted path from the root, '' for the root itself. */
  readonly path: string;
  /** PyTorch's class name, which wrap policies name. */
  readonly className: string;
}

/** The shape of one micro-batch: rows of tokens. */
export interface BatchShape {
  readonly batch: number;
  readonly tokens: number;
}

/** What a trace needs to know beside the batch: which rank it is for and what its random masks depend on. */
export interface TraceContext {
  readonly rank: number;
  readonly seed: number;
  /** Which micro-batch of the step this is, of how many; 0 of 1 if left out. */
  readonly microBatch?: number;
  readonly microBatches?: number;
  /** Whether the model only measures: nothing is dropped. */
  readonly evaluate?: boolean;
}

/** A model as data: its modules and parameters in state_dict order, and how it computes. Nothing is allocated. */
export interface Model {
  readonly modules: readonly ModuleSpec[];
  readonly parameters: readonly ParameterSpec[];
  /** Further names of parameters: what PyTorch's state_dict lists a second time where a module uses another's parameter. */
  readonly tied?: readonly { readonly name: string; readonly tiedTo: string }[];
  /** Class names of the repeated blocks: what a wrap policy usually names. */
  readonly blockClasses: readonly string[];
  readonly vocabSize: number;
  /** The longest sequence that it can read, where there is a bound. */
  readonly maxTokens?: number;
  /** Emits forward and leaves the gradient rules; the caller then calls graph.backward(). */
  trace(graph: Graph, shape: BatchShape, context: TraceContext): void;
  /**
   * For models that can continue a text: emits the forward pass alone, without loss and dropout, over the batch tensor
   * `input`. Logits [batch · tokens, stride], of which the first vocabSize columns of a row count.
   */
  traceLogits?(graph: Graph, shape: BatchShape): Value;
}

/** Elements of all parameters. */
export function parameterCount(model: Model): number {
  return model.parameters.reduce((n, p) => n + p.shape.reduce((a, b) => a * b, 1), 0);
}

/** The parameter of that name. Throws StudioError `internal` when the model has none. */
export function parameterOf(model: Model, name: string): ParameterSpec {
  const found = model.parameters.find((p) => p.name === name);
  if (!found) throw new StudioError('internal', `the model has no parameter ${name}`);
  return found;
}
