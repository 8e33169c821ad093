import { dropoutInPlace } from '../ops/dropout/dropout-in-place.ts';
import type { Call } from '../ops/graph.ts';
import { onTensorCores } from '../ops/half/on-tensor-cores.ts';
import { matmulNN, matmulNTBias } from '../ops/matmul/matmul.ts';
import { matmulNNGated, matmulNTReluDrop } from '../ops/matmul/matmul-hidden.ts';
import { reluGrad } from '../ops/relu-grad/relu-grad.ts';
import type { UnitProgram } from './unit-program.ts';

/**
 * With tensor cores, as one call each: the product into a hidden layer and the dropout of it; the product that makes the
 * gradient of a hidden layer and what passes that through the layer's ReLU and dropout. Which calls are joined does not
 * depend on where the program is cut into visits.
 */
export function withHiddenProducts(program: UnitProgram): UnitProgram {
  const calls = program.visits.flatMap((visit) => visit.calls);
  const instead = new Map<Call, readonly Call[]>();
  for (const [i, product] of calls.entries()) {
    const next = calls[i + 1];
    const joined = next && (dropped(product, next) ?? gated(product, next));
    if (!joined) continue;
    instead.set(product, [joined]);
    instead.set(next, []);
  }
  const visits = program.visits.map((visit) => ({
    ...visit,
    calls: visit.calls.flatMap((call) => instead.get(call) ?? [call]),
  }));
  return { ...program, visits };
}

/** Whether `next` goes over all of the product's result, which lies there row by row from the beginning. */
function goesOverResult({ operands, params }: Call, next: Call, value: number): boolean {
  const { M, N, cOffset, ldc, accumulate } = params;
  const whole = cOffset === 0 && ldc === N && accumulate === 0 && next.params.n === M * N;
  return whole && next.operands[value].id === operands[2].id;
}

function dropped(product: Call, next: Call): Call | null {
  if (product.kernel !== matmulNTBias || next.kernel !== dropoutInPlace || product.params.relu !== 1) return null;
  if (!goesOverResult(product, next, 0)) return null;
  const { accumulate, relu, ...sizes } = product.params;
  const { n, ...site } = next.params;
  const params = { ...sizes, ...site };
  if (!onTensorCores(matmulNTReluDrop, ['a', 'b', 'bias'], params)) return null;
  return { ...product, kernel: matmulNTReluDrop, operands: [...product.operands, next.operands[1]], params };
}

function gated(product: Call, next: Call): Call | null {
  if (product.kernel !== matmulNN || next.kernel !== reluGrad || !goesOverResult(product, next, 1)) return null;
  const { accumulate, ...sizes } = product.params;
  const params = { ...sizes, scale: next.params.scale };
  if (!onTensorCores(matmulNNGated, ['b', 'hidden'], params)) return null;
  const [a, b, c] = product.operands;
  return { ...product, kernel: matmulNNGated, operands: [a, b, c, next.operands[0]], params };
}
