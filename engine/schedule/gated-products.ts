import type { Call } from '../ops/graph.ts';
import { onTensorCores } from '../ops/half/on-tensor-cores.ts';
import { matmulNN } from '../ops/matmul/matmul.ts';
import { matmulNNGated } from '../ops/matmul/matmul-hidden.ts';
import { reluGrad } from '../ops/relu-grad/relu-grad.ts';
import type { UnitProgram } from './unit-program.ts';

/**
 * With tensor cores, a product that makes the gradient of a hidden layer, and the call after it that passes it through the
 * layer's ReLU and dropout, as one call. Which are joined does not depend on where the program is cut into visits.
 */
export function withGatedProducts(program: UnitProgram): UnitProgram {
  const calls = program.visits.flatMap((visit) => visit.calls);
  const instead = new Map<Call, readonly Call[]>();
  calls.forEach((product, i) => {
    const gate = calls[i + 1];
    if (product.kernel !== matmulNN || gate?.kernel !== reluGrad) return;
    const [a, b, c] = product.operands;
    const [hidden, gradient] = gate.operands;
    const { accumulate, ...params } = product.params;
    const { M, N, ldc } = params;
    if (gradient.id !== c.id || accumulate !== 0 || ldc !== N || gate.params.n !== M * N) return;
    const gated = { ...params, scale: gate.params.scale };
    if (!onTensorCores(matmulNNGated, ['b', 'hidden'], gated)) return;
    instead.set(product, [{ ...product, kernel: matmulNNGated, operands: [a, b, c, hidden], params: gated }]);
    instead.set(gate, []);
  });
  const visits = program.visits.map((visit) => ({
    ...visit,
    calls: visit.calls.flatMap((call) => instead.get(call) ?? [call]),
  }));
  return { ...program, visits };
}
