import { StudioError } from '../errors.ts';
import { type DType, dtypeBytes, type Kernel, type Params } from './kernel.ts';

/**
 * What a model says it computes: values, and the kernel calls that make them, first forward, then backward. Each op
 * emits its forward calls and leaves a gradient rule; `backward()` runs the rules in reverse. No numbers exist here.
 */

export type Role =
  /** A trainable tensor of the model, by its state_dict name. */
  | 'parameter'
  /** Its gradient in this rank's backward, before any reduction. */
  | 'parameter-gradient'
  /** What forward makes, kept until its last use. */
  | 'activation'
  /** What backward makes, and scratch. */
  | 'workspace'
  /** Token ids and targets. */
  | 'batch'
  /** Filled once, before step 0. */
  | 'constant'
  /** The control tensor. */
  | 'control';

export interface Value {
  readonly id: number;
  readonly name: string;
  readonly shape: readonly number[];
  readonly dtype: DType;
  readonly role: Role;
  /** For `parameter-gradient`: the parameter. */
  readonly parameter?: string;
  /** For `parameter-gradient`: which reduction it goes to; 0, or with a reduction per micro-batch the micro-batch. */
  readonly round?: number;
  /** For `activation`: a figure of a row or two, which float16 would spoil. */
  readonly exact?: boolean;
  /** For `constant`: its contents. */
  readonly data?: Float32Array<ArrayBuffer>;
}

export type Phase = 'forward' | 'backward';

export interface Call {
  readonly kernel: Kernel;
  readonly operands: readonly Value[];
  readonly params: Params;
  /** Path of the module that the call belongs to, '' for the root. */
  readonly module: string;
  readonly phase: Phase;
  /** Micro-batch of the step that it is for. */
  readonly microBatch: number;
}

/** What of a model is not plain: checkpointed modules, frozen parameters. */
export interface GraphOptions {
  /** Paths of blocks that keep only their input in forward and are computed again in backward. */
  readonly checkpointed?: ReadonlySet<string>;
  /** state_dict names of parameters that get no gradient. */
  readonly frozen?: ReadonlySet<string>;
  /** Activations of at least so many bytes are not kept for backward where `again` says how to have them twice; none if left out. */
  readonly againFromBytes?: number;
  /** Whether that goes for hidden layers too, which cost a product of matrices. */
  readonly hiddenAgain?: boolean;
  /** Whether `backward()` will not be called. */
  readonly forwardOnly?: boolean;
}

interface Rule {
  readonly module: string;
  readonly rule: () => void;
  readonly output: Value;
}

/** Elements of a shape. */
export function elementsOf(shape: readonly number[]): number {
  return shape.reduce((product, extent) => product * extent, 1);
}

/** Bytes of a value: whole words. */
export function bytesOf(value: Pick<Value, 'shape' | 'dtype'>): number {
  return Math.ceil((elementsOf(value.shape) * dtypeBytes[value.dtype]) / 4) * 4;
}

/** Where a gradient goes, and whether something is there already that must be added to. */
export interface GradientTarget {
  readonly value: Value;
  readonly accumulate: boolean;
}

export class Graph {
  readonly values: Value[] = [];
  readonly calls: Call[] = [];
  readonly control: Value;
  /** Paths of `checkpointed` that the model's trace has come by. */
  readonly checkpointedBlocks = new Set<string>();
  /** Whether some hidden layer is kept that could be computed again. */
  keepsHidden = false;
  private rules: Rule[] = [];
  private readonly parameters = new Map<string, Value>();
  private readonly constants = new Map<string, Value>();
  private readonly parameterGradients = new Map<string, Value>();
  /** Gradient of each activation, by id; several activations may share one (the two inputs of a sum). */
  private readonly gradients = new Map<number, Value>();
  /** How many gradient rules of each output have not run: its gradient may not be added to through another name. */
  private readonly pending = new Map<number, number>();
  /** Ids of values that some trainable parameter has a part in. */
  private readonly differentiable = new Set<number>();
  /** How backward computes an activation again, by its id; once it has, the new one. */
  private readonly recipes = new Map<number, (() => Value) | Value>();
  /** How many calls of forward read each value, by its id. */
  private readonly readers = new Map<number, number>();
  /** Values whose gradient goes on as it is where they are above 0, times a scale, and as 0 elsewhere. */
  private readonly gates = new Map<number, { readonly scale: number; passed: boolean }>();
  /** Stands for a gradient that nobody needs. */
  private readonly nowhere: Value = { id: -1, name: 'nowhere', shape: [0], dtype: 'f32', role: 'workspace' };
  private module = '';
  private phase: Phase = 'forward';
  /** Whether what is computed now is a part of forward once more. */
  private recomputing = false;
  /** Whether what is computed now is dropped after forward. */
  private dropping = false;
  /** Whether forward and backward are one, piece by piece. */
  private turning = false;
  private microBatch = 0;
  private round = 0;

  constructor(private readonly options: GraphOptions = {}) {
    this.control = this.add('control', [16], 'f32', 'control');
  }

  /** Begins another micro-batch of the same step. `newRound`: its parameter gradients are reduced by themselves. */
  nextMicroBatch(newRound: boolean): void {
    this.phase = 'forward';
    this.microBatch++;
    this.gradients.clear();
    if (!newRound) return;
    this.round++;
    this.parameterGradients.clear();
  }

  /**
   * Runs a repeated block of the model. If it is checkpointed, what it computes inside is dropped after forward and
   * computed again, from its inputs, before its gradient rules run (Chen et al. 2016). `body` must emit the same calls,
   * random sites included, each time.
   */
  block(path: string, body: () => Value): Value {
    if (!this.options.checkpointed?.has(path)) return this.within(path, body);
    this.checkpointedBlocks.add(path);
    const outer = this.rules;
    this.rules = [];
    this.dropping = true;
    const output = this.within(path, body);
    this.dropping = false;
    this.forget(this.rules);
    this.rules = outer;
    this.within(path, () =>
      this.gradientRule(output, () => {
        this.rules = [];
        this.recomputing = true;
        const again = body();
        this.recomputing = false;
        this.shareGradient(again, this.gradientOf(output));
        this.runRules();
      }),
    );
    return output;
  }

  get isForwardOnly(): boolean {
    return this.options.forwardOnly === true;
  }

  /**
   * Runs `body`, the end of a micro-batch's forward, as the beginning of its backward: what it computes may be followed at once
   * by its gradient. It reads what forward has made as it is, and leaves no rule.
   */
  turn(body: () => void): void {
    this.phase = 'backward';
    this.turning = true;
    body();
    this.turning = false;
  }

  /** Runs `body` inside the module at `path`; the calls it emits, and later their gradients, belong to that module. */
  within<T>(path: string, body: () => T): T {
    const outer = this.module;
    this.module = path;
    try {
      return body();
    } finally {
      this.module = outer;
    }
  }

  /** The parameter of that state_dict name. A tied parameter is asked for several times. */
  parameter(name: string, shape: readonly number[]): Value {
    const known = this.parameters.get(name);
    if (known) return known;
    const value = this.add(name, shape, 'f32', 'parameter');
    this.parameters.set(name, value);
    return value;
  }

  activation(name: string, shape: readonly number[], dtype: DType = 'f32'): Value {
    return this.add(this.qualified(name), shape, dtype, this.isForward() ? 'activation' : 'workspace');
  }

  /** What forward keeps of each row for backward: a mean, the logarithm of a sum. Always float32. */
  statistics(name: string, shape: readonly number[]): Value {
    const value = { ...this.activation(name, shape), exact: true };
    this.values[value.id] = value;
    return value;
  }

  workspace(name: string, shape: readonly number[], dtype: DType = 'f32'): Value {
    return this.add(this.qualified(name), shape, dtype, 'workspace');
  }

  batch(name: string, shape: readonly number[]): Value {
    return this.add(name, shape, 'u32', 'batch');
  }

  /** The constant of that name; its data are the same each time that it is asked for. */
  constant(name: string, shape: readonly number[], data: Float32Array<ArrayBuffer>): Value {
    const known = this.constants.get(name);
    if (known) return known;
    const value: Value = { id: this.values.length, name, shape, dtype: 'f32', role: 'constant', data };
    this.values.push(value);
    this.constants.set(name, value);
    return value;
  }

  /**
   * Says that `value`, which forward has just made, may be computed again in backward rather than kept: worth it where that
   * costs little beside what uses it. `prepare` emits what must be kept for it, and returns what computes it, to the same bits,
   * without any parameter: these may be elsewhere by then.
   */
  again(value: Value, prepare: () => () => Value): void {
    const { againFromBytes = Number.POSITIVE_INFINITY } = this.options;
    if (this.phase === 'backward' || this.dropping || bytesOf(value) < againFromBytes) return;
    if (this.differentiable.has(value.id)) this.recipes.set(value.id, prepare());
  }

  /**
   * The same of a hidden layer, whose weights are used again: what `compute` emits belongs to the module that it belongs to
   * now, where they will be.
   */
  hiddenAgain(value: Value, compute: () => Value): void {
    const { module } = this;
    if (this.options.hiddenAgain) this.again(value, () => () => this.within(module, compute));
    else this.keepsHidden ||= bytesOf(value) >= (this.options.againFromBytes ?? Number.POSITIVE_INFINITY);
  }

  /** What backward reads in place of an activation of forward. */
  private fresh(value: Value): Value {
    const recipe = this.recipes.get(value.id);
    if (typeof recipe !== 'function') return recipe ?? value;
    const { recomputing } = this;
    this.recomputing = true;
    const made = recipe();
    this.recomputing = recomputing;
    this.recipes.set(value.id, made);
    return made;
  }

  /** One dispatch. Operands are whole values; sub-ranges are named by the kernel's offset parameters. */
  emit(kernel: Kernel, operands: readonly Value[], params: Params): void {
    if (operands.length !== kernel.operands.length)
      throw new StudioError(
        'internal',
        `${kernel.name} takes ${kernel.operands.length} operands, got ${operands.length}`,
      );
    const written = operands.filter((_, i) => kernel.operands[i].access !== 'read');
    if (this.isForward()) {
      this.followGradients(kernel, operands);
      this.countReaders(kernel, operands);
    } else if (written.every((value) => value === this.nowhere)) return;
    const { module, phase, microBatch } = this;
    const mayBeGone = phase === 'backward' && !this.turning;
    const used = operands.map((value, i) => {
      // A kernel that writes several gradients writes those that nobody needs to scratch.
      if (value === this.nowhere)
        return this.workspace(kernel.operands[i].name, operands.find((o) => o !== value)!.shape);
      return mayBeGone && kernel.operands[i].access === 'read' ? this.fresh(value) : value;
    });
    this.calls.push({ kernel, operands: used, params, module, phase, microBatch });
  }

  /** Leaves the gradient rule of the op that made `output`, or changed it in place. */
  gradientRule(output: Value, rule: () => void): void {
    if (output !== this.control && !this.differentiable.has(output.id)) return;
    this.rules.push({ module: this.module, rule, output });
    this.pending.set(output.id, (this.pending.get(output.id) ?? 0) + 1);
  }

  /** Runs every gradient rule, last op first. Call once for each micro-batch, after the loss op. */
  backward(): void {
    this.phase = 'backward';
    this.runRules();
  }

  private runRules(): void {
    const rules = this.rules;
    this.rules = [];
    for (const { module, rule, output } of rules.reverse()) {
      this.pending.set(output.id, this.pending.get(output.id)! - 1);
      this.within(module, rule);
    }
  }

  private forget(rules: readonly Rule[]): void {
    for (const { output } of rules) this.pending.set(output.id, this.pending.get(output.id)! - 1);
  }

  private isForward(): boolean {
    return this.phase === 'forward' || this.recomputing;
  }

  private countReaders(kernel: Kernel, operands: readonly Value[]): void {
    operands.forEach(({ id }, i) => {
      if (kernel.operands[i].access === 'read') this.readers.set(id, (this.readers.get(id) ?? 0) + 1);
    });
  }

  private followGradients(kernel: Kernel, operands: readonly Value[]): void {
    const needs = operands.some((value, i) => {
      if (kernel.operands[i].access === 'write') return false;
      return value.role === 'parameter' ? !this.options.frozen?.has(value.name) : this.differentiable.has(value.id);
    });
    if (!needs) return;
    operands.forEach((value, i) => {
      if (kernel.operands[i].access !== 'read' && value !== this.control) this.differentiable.add(value.id);
    });
  }

  /** The gradient of an op's output, which the ops that use it have written. */
  gradientOf(value: Value): Value {
    const gradient = this.gradients.get(value.id);
    if (!gradient) throw new StudioError('internal', `nothing has written the gradient of ${value.name}`);
    return gradient;
  }

  /** Where an op writes, or adds, its part of an input's gradient. */
  gradientTarget(value: Value): GradientTarget {
    if (!this.differentiable.has(value.id)) return { value: this.nowhere, accumulate: false };
    const known = this.gradients.get(value.id);
    if (known) {
      this.refuseSharedGradient(value, known);
      return { value: known, accumulate: true };
    }
    const made = this.add(`${value.name}.grad`, value.shape, 'f32', 'workspace');
    this.gradients.set(value.id, made);
    return { value: made, accumulate: false };
  }

  /** Whether some op has written this value's gradient already. */
  hasGradient(value: Value): boolean {
    return this.gradients.has(value.id);
  }

  /** Says that the gradient of `value` goes on where it is above 0, times `scale`: what writes it may do so at once. */
  gate(value: Value, scale: number): void {
    this.gates.set(value.id, { scale, passed: false });
  }

  /** The scale of a gate, for the op that is about to write all of the value's gradient: it must then apply it. */
  passGate(value: Value): number | null {
    const gate = this.gates.get(value.id);
    if (!gate || this.readers.get(value.id) !== 1) return null;
    gate.passed = true;
    return gate.scale;
  }

  /** Whether the gradient of `value` has gone through its gate already. */
  isPastGate(value: Value): boolean {
    return this.gates.get(value.id)?.passed ?? false;
  }

  /** Says that `gradient`, already computed, is the gradient of `value`: no copy. */
  shareGradient(value: Value, gradient: Value): void {
    if (!this.differentiable.has(value.id)) return;
    if (this.gradients.has(value.id))
      throw new StudioError('internal', `${value.name} has a gradient already; add to it instead`);
    this.gradients.set(value.id, gradient);
  }

  /** Where a parameter's gradient is written, or added when an earlier use has written it. */
  parameterGradient(parameter: Value): GradientTarget {
    if (this.options.frozen?.has(parameter.name)) return { value: this.nowhere, accumulate: false };
    const known = this.parameterGradients.get(parameter.name);
    if (known) return { value: known, accumulate: true };
    const value: Value = {
      id: this.values.length,
      name: `${parameter.name}.grad`,
      shape: parameter.shape,
      dtype: 'f32',
      role: 'parameter-gradient',
      parameter: parameter.name,
      round: this.round,
    };
    this.values.push(value);
    this.parameterGradients.set(parameter.name, value);
    return { value, accumulate: false };
  }

  private refuseSharedGradient(value: Value, gradient: Value): void {
    for (const [id, other] of this.gradients)
      if (other === gradient && id !== value.id && this.pending.get(id))
        throw new StudioError(
          'internal',
          `adding to the gradient of ${value.name} would change that of ${this.values[id].name}, which is still needed`,
        );
  }

  private qualified(name: string): string {
    return this.module ? `${this.module}.${name}` : name;
  }

  private add(name: string, shape: readonly number[], dtype: DType, role: Role): Value {
    const value: Value = { id: this.values.length, name, shape, dtype, role };
    this.values.push(value);
    return value;
  }
}
