import { checkConfig, type ExperimentConfig } from '../../engine/config.ts';
import { buildModel } from '../../engine/model/build-model.ts';
import { type CompiledRun, compileRun } from '../../engine/schedule/compile.ts';
import { predictionOf, shapeOfData } from '../../engine/schedule/plan.ts';
import type { AdapterProfile } from '../../engine/schedule/profile.ts';
import type { Action } from '../../engine/schedule/schedule.ts';

/** A step over a slower link between the rows of a mesh. */
export interface OverLink {
  readonly estimateMs: number;
  /** What a rank receives from other rows in a step. */
  readonly crossingBytes: number;
  readonly peakBytes: number;
}

/** What HYBRID_SHARD is for: the same run over the same link, sharded within a row, and over all ranks. */
export interface LinkComparison {
  readonly linkGBps: number;
  readonly hybrid: OverLink;
  readonly fullShard: OverLink;
}

/**
 * Prices a hybrid run with a simulated link beside FULL_SHARD (for ZeRO-2, SHARD_GRAD_OP) over all ranks, whose rows are joined
 * by that link too. The engine simulates the link for hybrid runs only, so this is a price and no schedule that is run. Null for
 * any other config.
 */
export function compareOverLink(config: ExperimentConfig, profile: AdapterProfile): LinkComparison | null {
  const { strategy } = config;
  if (strategy.kind !== 'fsdp' || strategy.linkGBps === null || strategy.deviceMesh === null) return null;
  const { linkGBps, deviceMesh } = strategy;
  const rowSize = deviceMesh[1];
  const shardingStrategy = strategy.shardingStrategy === 'HYBRID_SHARD_ZERO2' ? 'SHARD_GRAD_OP' : 'FULL_SHARD';
  const inOneRow = { ...config, strategy: { ...strategy, shardingStrategy, deviceMesh: null, linkGBps: null } };
  const { config: fullShard } = checkConfig(inOneRow);
  if (!fullShard) return null;
  const compiled = (of: ExperimentConfig) =>
    compileRun({ config: of, model: buildModel(of.model, null), shapes: [shapeOfData(of.data)], rank: 0, profile });
  const priced = (run: CompiledRun): OverLink => {
    const { estimateMs, peakBytes } = predictionOf(run, profile);
    const actions = run.steps[0].schedule.steps.map(({ action }) => action);
    return { estimateMs: estimateMs ?? 0, peakBytes, crossingBytes: crossingBytesOf(actions, rowSize) };
  };
  return {
    linkGBps,
    hybrid: priced(compiled(config)),
    fullShard: priced(withLink(compiled(fullShard), linkGBps, rowSize)),
  };
}

/** Peers of rank 0 that are in another row than its own, which is the first. */
const elsewhere = (peers: readonly number[], rowSize: number) => peers.filter((peer) => peer >= rowSize).length;

function crossingBytesOf(actions: readonly Action[], rowSize: number): number {
  return actions.reduce(
    (sum, action) => (action.type === 'collect' ? sum + action.bytesPerPeer * elsewhere(action.peers, rowSize) : sum),
    0,
  );
}

/** The run with what it collects from other rows coming over the link: for the time of all peers' bytes, as if it were wider. */
function withLink(run: CompiledRun, linkGBps: number, rowSize: number): CompiledRun {
  const over = (action: Action): Action => {
    if (action.type !== 'collect') return action;
    const crossing = elsewhere(action.peers, rowSize);
    return crossing ? { ...action, linkGBps: (linkGBps * action.peers.length) / crossing } : action;
  };
  return {
    ...run,
    steps: run.steps.map((step) => ({
      ...step,
      schedule: {
        ...step.schedule,
        steps: step.schedule.steps.map((one) => ({ ...one, action: over(one.action) })),
      },
    })),
  };
}
