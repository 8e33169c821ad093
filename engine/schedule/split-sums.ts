import type { Call, Value } from '../ops/graph.ts';
import { onTensorCores } from '../ops/half/on-tensor-cores.ts';
import type { Kernel, Params } from '../ops/kernel.ts';
import { matmulNN, matmulNNBias } from '../ops/matmul/matmul.ts';
import { matmulAddParts, matmulAddPartsBias, matmulNNParts, PARTS } from '../ops/matmul/matmul-parts.ts';
import type { AdapterProfile } from './profile.ts';
import type { UnitProgram } from './unit-program.ts';

/** Products whose sums may be split, with what adds the parts. Where rows of the weight run along k (nt) one dispatch is as fast. */
const SPLIT: ReadonlyMap<Kernel, readonly [parts: Kernel, add: Kernel]> = new Map([
  [matmulNN, [matmulNNParts, matmulAddParts]],
  [matmulNNBias, [matmulNNParts, matmulAddPartsBias]],
]);

const FEW_ROWS = 64;
/** From so many columns on there are workgroups enough. */
const MANY_COLUMNS = 2048;
/** Shorter sums are over before a second dispatch has begun. */
const LONG_SUM = 3072;

/** A result of up to so many tiles of 128x128 leaves most of a large GPU idle; sums as long as a vocabulary are worth their parts. */
const FEW_TILES = 64;
const VERY_LONG_SUM = 16_384;

/** Whether a real GPU is faster with the sum over k in parts, which a second dispatch adds. */
function isSplit(parts: Kernel, params: Params): boolean {
  const { M, N, K } = params;
  const few = M <= FEW_ROWS && N < MANY_COLUMNS && K >= LONG_SUM;
  const isTall = M >= 128 && N >= 128 && Math.ceil(M / 128) * Math.ceil(N / 128) <= FEW_TILES && K >= VERY_LONG_SUM;
  return (few || isTall) && parts.tiled?.fits(params) === true;
}

/** The same of a product on tensor cores, where they can have its parts. */
function splitOnTensorCores({ kernel, params }: Call): readonly [parts: Kernel, add: Kernel] | null {
  const { halves = [] } = kernel;
  if (kernel !== onTensorCores(matmulNN, halves, params)) return null;
  const parts = onTensorCores(matmulNNParts, halves, params);
  return parts && [parts, matmulAddParts];
}

/**
 * On a real GPU, products of few rows, few columns and long sums (and of few tiles with sums over a vocabulary: what a piece of a
 * head's logits gives its input) as two calls, with the sums over parts of k in a workspace
 * between them: one multiprocessor could not read its share of both operands as fast as all of them can. A function of
 * shapes and profile, so that every rank and strategy adds in the same order.
 */
export function withSplitSums(program: UnitProgram, { software }: AdapterProfile): UnitProgram {
  if (software) return program;
  const values: Value[] = [...program.values];
  const split = (call: Call): Call[] => {
    const [parts, add] = SPLIT.get(call.kernel) ?? splitOnTensorCores(call) ?? [];
    if (!parts || !add || !isSplit(parts, call.params)) return [call];
    const [a, b, c, ...bias] = call.operands;
    const { M, N } = call.params;
    const sums: Value = {
      id: values.length,
      name: `${c.name}.parts`,
      shape: [PARTS, M, N],
      dtype: 'f32',
      role: 'workspace',
    };
    values.push(sums);
    return [
      { ...call, kernel: parts, operands: [a, b, sums] },
      { ...call, kernel: add, operands: [sums, c, ...bias] },
    ];
  };
  const visits = program.visits.map((visit) => ({ ...visit, calls: visit.calls.flatMap(split) }));
  return { ...program, visits, values };
}
