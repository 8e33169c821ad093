import type { Call } from '../ops/graph.ts';
import type { Params } from '../ops/kernel.ts';
import { matmulNN, matmulTNSums } from '../ops/matmul/matmul.ts';
import { matmulNNGated } from '../ops/matmul/matmul-hidden.ts';
import { matmulLinearGrads } from '../ops/matmul/matmul-linear-grads.ts';
import type { AdapterProfile } from './profile.ts';
import type { UnitProgram, Visit } from './unit-program.ts';

/** Longer sums, those of a model's head, are added in parts. */
const MOST_OUTPUTS = 8192;

/**
 * On a real GPU, the gradients of a linear layer of few rows, its weight's with its bias's and its input's, as one call: both
 * read the same dy, neither needs the other, and either alone leaves half of a large GPU waiting. The later one's place is
 * theirs. A function of shapes and profile, so that every rank and strategy adds in the same order.
 */
export function withJoinedGradients(program: UnitProgram, { software }: AdapterProfile): UnitProgram {
  if (software) return program;
  return { ...program, visits: program.visits.map((visit) => ({ ...visit, calls: joined(visit) })) };
}

function joined({ calls }: Visit): readonly Call[] {
  const instead = new Map<Call, readonly Call[]>();
  calls.forEach((weight, i) => {
    if (weight.kernel !== matmulTNSums) return;
    for (let at = i + 1; at < calls.length; at++) {
      const input = calls[at];
      const params = paramsOfBoth(weight, input);
      if (params) {
        const [dy, x, dw, sums] = weight.operands;
        const [, w, dx] = input.operands;
        instead.set(weight, []);
        instead.set(input, [{ ...input, kernel: matmulLinearGrads, operands: [dy, w, x, dx, dw, sums], params }]);
        return;
      }
      if (!mayPass(weight, input)) return;
    }
  });
  return calls.flatMap((call) => instead.get(call) ?? [call]);
}

/** The parameters of both as one, if they are the gradients of one layer and a GPU has a variant for them. */
function paramsOfBoth(weight: Call, input: Call): Params | null {
  const isGated = input.kernel === matmulNNGated;
  if (!isGated && input.kernel !== matmulNN) return null;
  const [dy, x] = weight.operands;
  const [a, , dx, hidden] = input.operands;
  const [of, to] = [weight.params, input.params];
  const { M, N, K, aOffset, lda } = to;
  const agree =
    a.id === dy.id && of.aOffset === aOffset && of.lda === lda && of.cOffset === to.bOffset && of.K === M && of.M === K;
  const whole = of.N === N && [of.ldb, of.ldc, to.ldb, to.ldc].every((stride) => stride === N);
  const fromBeginning = of.bOffset === 0 && to.cOffset === 0;
  if (!agree || !whole || !fromBeginning || dx.id === x.id || (isGated && hidden.id !== x.id)) return null;
  const params = {
    ...{ M, N: K, K: N, dyOffset: aOffset, ldy: lda, wOffset: to.bOffset },
    ...{ xAccumulate: isGated ? 0 : to.accumulate, wAccumulate: of.accumulate },
    ...{ sumsOffset: of.sumsOffset, sumsAccumulate: of.sumsAccumulate },
    ...{ gated: isGated ? 1 : 0, scale: isGated ? to.scale : 1 },
  };
  return K <= MOST_OUTPUTS && matmulLinearGrads.tiled?.fits(params) ? params : null;
}

/** Whether `weight` may come after `other`: it changes nothing that `other` uses, but for other rows, and the other way about. */
function mayPass(weight: Call, other: Call): boolean {
  const uses = (call: Call, write: boolean) =>
    call.operands.filter((_, i) => !write || call.kernel.operands[i].access !== 'read').map(({ id }) => id);
  const shared = (a: readonly number[], b: readonly number[]) => a.filter((id) => b.includes(id));
  const conflicts = [
    ...shared(uses(weight, true), uses(other, false)),
    ...shared(uses(other, true), uses(weight, false)),
  ];
  if (conflicts.length === 0) return true;
  const results = uses(weight, true);
  const [first, second] = [weight.params, other.params].sort((a, b) => a.cOffset - b.cOffset);
  return (
    other.kernel === matmulTNSums &&
    conflicts.every((id) => results.includes(id)) &&
    first.ldc === second.ldc &&
    first.cOffset + first.M * first.ldc <= second.cOffset &&
    first.sumsOffset + first.M <= second.sumsOffset
  );
}
