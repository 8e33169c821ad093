import { elementsOf } from '../../ops/graph.ts';
import type { UnitProgram } from '../unit-program.ts';
import { type Group, groupOf, type StrategyPlan } from './strategy.ts';

const MiB = 2 ** 20;
/** The first bucket is small, so that reducing starts early (torch.nn.parallel.DistributedDataParallel). */
const FIRST_BUCKET_BYTES = MiB;

/**
 * DDP: every rank keeps all parameters. Gradients are reduced in buckets of at most `bucketCapMiB` (a larger parameter
 * has its own), in the order in which backward completes them, each as soon as its last gradient is there.
 */
export function ddp(program: UnitProgram, world: number, bucketCapMiB: number): StrategyPlan {
  const shapes = new Map(program.model.parameters.map((p) => [p.name, p.shape]));
  const groups: Group[] = [];
  let open: string[] = [];
  let openBytes = 0;
  const close = () => {
    if (open.length) groups.push(groupOf(program, `bucket ${groups.length}`, open, true));
    open = [];
    openBytes = 0;
  };
  for (const name of completionOrder(program)) {
    const bytes = 4 * elementsOf(shapes.get(name)!);
    const cap = groups.length === 0 ? FIRST_BUCKET_BYTES : bucketCapMiB * MiB;
    if (open.length && openBytes + bytes > cap) close();
    open.push(name);
    openBytes += bytes;
  }
  close();
  const frozen = program.model.parameters.map((p) => p.name).filter((name) => program.frozen.has(name));
  if (frozen.length) groups.push(groupOf(program, 'frozen', frozen, false));
  return { mesh: { replicate: world, shard: 1 }, groups, gathers: [] };
}

/** Parameters in the order of the last write of their gradient in the first round. */
function completionOrder(program: UnitProgram): string[] {
  const last = new Map<string, number>();
  let position = 0;
  for (const visit of program.visits)
    for (const call of visit.calls) {
      position++;
      for (const operand of call.operands)
        if (operand.role === 'parameter-gradient' && operand.round === 0) last.set(operand.parameter!, position);
    }
  const order = program.model.parameters.map((p) => p.name).filter((name) => last.has(name));
  return order.sort((a, b) => last.get(a)! - last.get(b)!);
}
