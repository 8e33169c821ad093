import type { ExperimentConfig } from '../config.ts';
import { attentionGrad } from '../ops/attention/attention-grad.ts';
import { attentionGradKV } from '../ops/attention/attention-grad-kv.ts';
import { attentionGradQ } from '../ops/attention/attention-grad-q.ts';
import { columnSum } from '../ops/column-sum/column-sum.ts';
import { crossEntropyGrad } from '../ops/cross-entropy/cross-entropy-grad.ts';
import { crossEntropyGradScaled } from '../ops/cross-entropy/cross-entropy-grad-scaled.ts';
import { crossEntropyPartial } from '../ops/cross-entropy/cross-entropy-partial.ts';
import { type Call, elementsOf, type Value } from '../ops/graph.ts';
import { attentionOnTensorCores } from '../ops/half/attention-on-tensor-cores.ts';
import { onTensorCores } from '../ops/half/on-tensor-cores.ts';
import { packHalf } from '../ops/half/pack-half.ts';
import { unpackHalf } from '../ops/half/unpack-half.ts';
import { withHalves } from '../ops/half/with-halves.ts';
import { writingHalves } from '../ops/half/writing-halves.ts';
import type { Kernel } from '../ops/kernel.ts';
import {
  layerNormDropResidual,
  layerNormDropResidualHalf,
  layerNormResidual,
  layerNormResidualHalf,
} from '../ops/layer-norm/layer-norm-residual.ts';
import { rmsNormResidual, rmsNormResidualHalf } from '../ops/rms-norm/rms-norm-residual.ts';
import { withHiddenProducts } from './hidden-products.ts';
import type { UnitProgram } from './unit-program.ts';

/** A type in which floats are stored. Arithmetic is float32 whatever they are stored as. */
export type FloatType = 'f32' | 'f16';

/** What is stored as what. */
export interface Precision {
  /** What is kept from step to step: parameters, optimizer state, and gradients once they are reduced. */
  readonly kept: FloatType;
  /** Parameters as they travel and are used, and activations. */
  readonly used: FloatType;
  /** The gradients that ranks send each other; they are added in float32. */
  readonly reduced: FloatType;
  /** Whether the loss's gradient is scaled so that small gradients are not lost in float16. */
  readonly scalesLoss: boolean;
}

/** What a config's words for it mean, as Fabric's MixedPrecision and HalfPrecision have it. */
export function precisionOf({ precision, strategy }: Pick<ExperimentConfig, 'precision' | 'strategy'>): Precision {
  const kept = precision === '16-true' ? 'f16' : 'f32';
  const used = precision === '32-true' ? 'f32' : 'f16';
  const reduceDtype = strategy.kind === 'fsdp' ? strategy.mixedPrecision.reduceDtype : null;
  const reduced = reduceDtype === null ? used : reduceDtype === 'float16' ? 'f16' : 'f32';
  return { kept, used, reduced, scalesLoss: precision === '16-mixed' };
}

/**
 * The precision pass: parameters are read as halves, and so are activations, from the moment that they are made (so what
 * is computed again in backward is the same to the bit). Figures of a row, logits and gradients stay float32. With
 * `tensorCores`, products large enough for them are products of halves, gradients that only these and their sums read are
 * halves too, and kernels that can write halves do; others write float32, which a call of their own packs.
 */
export function withPrecision(program: UnitProgram, precision: Precision, tensorCores: boolean): UnitProgram {
  if (precision.used !== 'f16') return program;
  return new HalfPass(tensorCores ? withHiddenProducts(program) : program, precision, tensorCores).run();
}

/**
 * Kernels that go on with a sum which they also keep, and those that go on with it as it is kept: in halves. Whether a pass
 * keeps it or not, the numbers are the same.
 */
const ROUNDING = new Map([
  [layerNormResidual, layerNormResidualHalf],
  [layerNormDropResidual, layerNormDropResidualHalf],
  [rmsNormResidual, rmsNormResidualHalf],
]);

/** Kernels that add up gradients which products round to halves: they may have them as rounded. */
const SUMS: ReadonlySet<Kernel> = new Set([columnSum, attentionGrad, attentionGradQ, attentionGradKV]);

/** Kernels that write a part of a gradient each, and add to none. */
const PARTS: ReadonlySet<Kernel> = new Set([attentionGradQ, attentionGradKV]);

/** How an activation that is kept in halves is used; calls by position. */
interface HalfLife {
  /** The call after which it is complete. */
  readonly complete: number;
  /** The first call that changes it after it has been read: from there it is float32 again. Infinity if there is none. */
  readonly changed: number;
}

class HalfPass {
  private readonly values: Value[];
  private lives: ReadonlyMap<number, HalfLife>;
  /** Ids of those that are halves as they are made. */
  private readonly direct: Set<number>;
  /** The float32 forms of activations, by name and id. */
  private readonly whole = new Map<string, Value>();

  constructor(
    private readonly program: UnitProgram,
    private readonly precision: Precision,
    private readonly tensorCores: boolean,
  ) {
    this.values = [...program.values];
    const calls = program.visits.flatMap((visit) => visit.calls);
    this.lives = halfLives(calls);
    this.direct = new Set();
    if (!tensorCores) return;
    const gradients = gradientLives(calls);
    this.direct = this.madeAsHalves(calls, gradients);
    // So does one that not only products read.
    for (const id of this.readElsewhere(calls, gradients)) this.direct.delete(id);
    this.lives = new Map([...this.lives].filter(([id]) => this.direct.has(id) || !gradients.has(id)));
  }

  /** Which of these gradients are read by a call that would not round them to halves by itself. */
  private readElsewhere(calls: readonly Call[], gradients: ReadonlyMap<number, HalfLife>): Set<number> {
    const found = new Set<number>();
    calls.forEach((call, position) => {
      call.operands.forEach((value, i) => {
        const life = gradients.get(value.id);
        if (!life || position <= life.complete) return;
        const { name } = call.kernel.operands[i];
        const { reads } = this.uses(call, position);
        const rounds = name !== 'c' && onTensorCores(call.kernel, reads, call.params) !== null;
        if (!rounds && !SUMS.has(call.kernel)) found.add(value.id);
      });
    });
    return found;
  }

  /** The activations and gradients of which every call that makes a part can write halves. */
  private madeAsHalves(calls: readonly Call[], gradients: ReadonlyMap<number, HalfLife>): Set<number> {
    const lives = new Map([...this.lives, ...gradients]);
    this.lives = lives;
    const direct = new Set(lives.keys());
    calls.forEach((call, position) => {
      const { reads, makes } = this.uses(call, position);
      for (const { name, id } of makes) {
        if (this.kernelFor({ ...call, kernel: standIn(call.kernel) }, reads, [name])) continue;
        direct.delete(id);
        // A gradient that some call cannot make so stays float32, for the calls that read it too.
        if (gradients.has(id)) lives.delete(id);
      }
    });
    return direct;
  }

  /** What of a call's operands is read as halves, and which of those that will be halves it makes. */
  private uses(call: Call, position: number) {
    const reads: string[] = [];
    const makes: { readonly name: string; readonly id: number }[] = [];
    call.operands.forEach((value, i) => {
      const { name } = call.kernel.operands[i];
      const life = this.lives.get(value.id);
      if (value.role === 'parameter' || (life && position > life.complete && position < life.changed)) reads.push(name);
      else if (life && position <= life.complete) makes.push({ name, id: value.id });
    });
    return { reads, makes };
  }

  /** The call's kernel with operands that it reads, and some that it writes, as halves; null if it cannot write them so. */
  private kernelFor({ kernel, params }: Call, reads: readonly string[], writes: readonly string[]): Kernel | null {
    const product = this.tensorCores ? onTensorCores(kernel, [...reads, ...writes], params) : null;
    const gradient = this.tensorCores ? attentionOnTensorCores(kernel, reads, writes, params) : null;
    return product ?? gradient ?? writingHalves(withHalves(kernel, reads), writes, params);
  }

  run(): UnitProgram {
    let position = 0;
    const visits = this.program.visits.map((visit) => ({
      ...visit,
      calls: visit.calls.flatMap((call) => this.around(call, position++)),
    }));
    return { ...this.program, visits, values: this.values };
  }

  /** The call in its new form, with the unpacking before it and the packing after it. */
  private around(call: Call, position: number): Call[] {
    const before: Call[] = [];
    const after: Call[] = [];
    const halves: string[] = [];
    const written: string[] = [];
    const operands = call.operands.map((value, i) => {
      const { name, access } = call.kernel.operands[i];
      if (value.role === 'parameter') {
        halves.push(name);
        return asHalf(value);
      }
      const life = this.lives.get(value.id);
      if (!life) return value;
      const n = elementsOf(value.shape);
      if (position >= life.changed) {
        const changing = this.float32(value, 'changing');
        if (position === life.changed)
          before.push({ ...call, kernel: unpackHalf, operands: [asHalf(value), changing], params: { n } });
        return changing;
      }
      if (position > life.complete) {
        if (access !== 'read') throw new RangeError(`${call.kernel.name} changes ${value.name} while it is halves`);
        halves.push(name);
        return asHalf(value);
      }
      if (this.direct.has(value.id)) {
        written.push(name);
        return asHalf(value);
      }
      const making = this.float32(value, 'making');
      if (position === life.complete)
        after.push({ ...call, kernel: packHalf, operands: [making, asHalf(value)], params: { n, xOffset: 0 } });
      return making;
    });
    const own = this.adapted(call, operands);
    const kernel = this.kernelFor(own, halves, written);
    if (!kernel) throw new RangeError(`${call.kernel.name} does not write ${written.join(', ')} as halves`);
    return [...before, { ...own, kernel }, ...after];
  }

  /** A call over these operands, with the kernel that stands in for its own in this precision. */
  private adapted(call: Call, operands: readonly Value[]): Call {
    const kernel = standIn(call.kernel);
    if (kernel !== call.kernel) return { ...call, kernel, operands };
    if (!this.precision.scalesLoss || call.kernel !== crossEntropyGrad) return { ...call, operands };
    return { ...call, kernel: crossEntropyGradScaled, operands: [...operands, this.program.control] };
  }

  private float32(value: Value, what: string): Value {
    const name = `${value.name} ${what}`;
    const key = `${name} ${value.id}`;
    const known = this.whole.get(key);
    if (known) return known;
    const made: Value = { id: this.values.length, name, shape: value.shape, dtype: 'f32', role: 'workspace' };
    this.values.push(made);
    this.whole.set(key, made);
    return made;
  }
}

/** The kernel that goes on with a sum as it is kept. */
function standIn(kernel: Kernel): Kernel {
  return ROUNDING.get(kernel) ?? kernel;
}

function asHalf(value: Value): Value {
  return { ...value, dtype: 'f16' };
}

/** Gradients that are complete before they are read, and not changed after that. */
function gradientLives(calls: readonly Call[]): Map<number, HalfLife> {
  const written = new Map<number, number>();
  const others = new Set<number>();
  const read = new Set<number>();
  calls.forEach((call, position) => {
    call.operands.forEach((value, i) => {
      if (value.role !== 'workspace' || value.dtype !== 'f32') return;
      if (call.kernel.operands[i].access === 'read') read.add(value.id);
      else if (written.has(value.id) && !PARTS.has(call.kernel)) others.add(value.id);
      else written.set(value.id, position);
    });
  });
  const complete = [...written].filter(([id]) => read.has(id) && !others.has(id));
  return new Map(complete.map(([id, position]) => [id, { complete: position, changed: Number.POSITIVE_INFINITY }]));
}

/** Which activations are kept in halves, by id: those that are read once they are complete. */
function halfLives(calls: readonly Call[]): Map<number, HalfLife> {
  const touched = new Map<number, { position: number; writes: boolean }[]>();
  const logits = new Set<number>();
  calls.forEach((call, position) => {
    call.operands.forEach((value, i) => {
      if (value.role !== 'activation' || value.dtype !== 'f32' || value.exact) return;
      const list = touched.get(value.id) ?? [];
      list.push({ position, writes: call.kernel.operands[i].access !== 'read' });
      touched.set(value.id, list);
      if (call.kernel === crossEntropyPartial) logits.add(value.id);
    });
  });
  const lives = new Map<number, HalfLife>();
  for (const [id, touches] of touched) {
    const firstRead = touches.findIndex(({ writes }) => !writes);
    if (firstRead < 1 || logits.has(id)) continue;
    const changed = touches.find(({ writes }, i) => i > firstRead && writes)?.position;
    lives.set(id, { complete: touches[firstRead - 1].position, changed: changed ?? Number.POSITIVE_INFINITY });
  }
  return lives;
}
