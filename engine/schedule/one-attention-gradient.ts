import { attentionGrad } from '../ops/attention/attention-grad.ts';
import { isFused } from '../ops/attention/attention-grad-fused.ts';
import { attentionGradKV } from '../ops/attention/attention-grad-kv.ts';
import { attentionGradQ } from '../ops/attention/attention-grad-q.ts';
import type { Call } from '../ops/graph.ts';
import type { AdapterProfile } from './profile.ts';
import type { UnitProgram } from './unit-program.ts';

/**
 * On a real GPU, the two calls for attention's gradients as one where heads are many and narrow: scores are then computed
 * once for both. A function of shapes and profile, so that every rank and strategy adds in the same order.
 */
export function withOneAttentionGradient(program: UnitProgram, { software }: AdapterProfile): UnitProgram {
  if (software) return program;
  const merged = (call: Call): Call[] => {
    if (!isFused(call.params)) return [call];
    if (call.kernel === attentionGradKV) return [];
    if (call.kernel !== attentionGradQ) return [call];
    const [qkv, control, out, dout, logSum, dqkv] = call.operands;
    return [{ ...call, kernel: attentionGrad, operands: [qkv, control, out, dout, logSum, dqkv] }];
  };
  const visits = program.visits.map((visit) => ({ ...visit, calls: visit.calls.flatMap(merged) }));
  return { ...program, visits };
}
