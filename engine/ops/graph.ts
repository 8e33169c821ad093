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
}

/** Elements of a shape. */
export function elementsOf(shape: readonly number[]): number {
  return shape.reduce((product, extent) => product * extent, 1);
}

/** Bytes of a value. */
export function bytesOf(value: Pick<Value, 'shape' | 'dtype'>): number {
  return elementsOf(value.shape) * dtypeBytes[value.dtype];
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
  private readonly rules: { module: string; rule: () => void; output: Value }[] = [];
  private readonly parameters = new Map<string, Value>();
  private readonly parameterGradients = new Map<string, Value>();
  /** Gradient of each activation, by id; several activations may share one (the two inputs of a sum). */
  private readonly gradients = new Map<number, Value>();
  /** How many gradient rules of each output have not run: its gradient may not be added to through another name. */
  private readonly pending = new Map<number, number>();
  private module = '';
  private phase: Phase = 'forward';

  constructor() {
    this.control = this.add('control', [16], 'f32', 'control');
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
    return this.add(this.qualified(name), shape, dtype, this.phase === 'forward' ? 'activation' : 'workspace');
  }

  workspace(name: string, shape: readonly number[], dtype: DType = 'f32'): Value {
    return this.add(this.qualified(name), shape, dtype, 'workspace');
  }

  batch(name: string, shape: readonly number[]): Value {
    return this.add(name, shape, 'u32', 'batch');
  }

  constant(name: string, shape: readonly number[], data: Float32Array<ArrayBuffer>): Value {
    const value: Value = { id: this.values.length, name, shape, dtype: 'f32', role: 'constant', data };
    this.values.push(value);
    return value;
  }

  /** One dispatch. Operands are whole values; sub-ranges are named by the kernel's offset parameters. */
  emit(kernel: Kernel, operands: readonly Value[], params: Params): void {
    if (operands.length !== kernel.operands.length)
      throw new StudioError(
        'internal',
        `${kernel.name} takes ${kernel.operands.length} operands, got ${operands.length}`,
      );
    this.calls.push({ kernel, operands, params, module: this.module, phase: this.phase });
  }

  /** Leaves the gradient rule of the op that made `output`, or changed it in place. */
  gradientRule(output: Value, rule: () => void): void {
    this.rules.push({ module: this.module, rule, output });
    this.pending.set(output.id, (this.pending.get(output.id) ?? 0) + 1);
  }

  /** Runs every gradient rule, last op first. Call once, after the loss op. */
  backward(): void {
    this.phase = 'backward';
    for (const { module, rule, output } of this.rules.reverse()) {
      this.pending.set(output.id, this.pending.get(output.id)! - 1);
      this.within(module, rule);
    }
  }

  /** The gradient of an op's output, which the ops that use it have written. */
  gradientOf(value: Value): Value {
    const gradient = this.gradients.get(value.id);
    if (!gradient) throw new StudioError('internal', `nothing has written the gradient of ${value.name}`);
    return gradient;
  }

  /** Where an op writes, or adds, its part of an input's gradient. */
  gradientTarget(value: Value): GradientTarget {
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

  /** Says that `gradient`, already computed, is the gradient of `value`: no copy. */
  shareGradient(value: Value, gradient: Value): void {
    if (this.gradients.has(value.id))
      throw new StudioError('internal', `${value.name} has a gradient already; add to it instead`);
    this.gradients.set(value.id, gradient);
  }

  /** Where a parameter's gradient is written, or added when an earlier use has written it. */
  parameterGradient(parameter: Value): GradientTarget {
    const known = this.parameterGradients.get(parameter.name);
    if (known) return { value: known, accumulate: true };
    const value: Value = {
      id: this.values.length,
      name: `${parameter.name}.grad`,
      shape: parameter.shape,
      dtype: 'f32',
      role: 'parameter-gradient',
      parameter: parameter.name,
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
