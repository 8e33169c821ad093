import { checkConfig, type ExperimentConfig } from '../../engine/config.ts';
import { type Prediction, planExperiment } from '../../engine/schedule/plan.ts';
import { type AdapterProfile, ranksPerAdapter } from '../../engine/schedule/profile.ts';
import { thriftierSettings, withSettings } from '../../engine/schedule/thriftier-settings.ts';
import { type Draft, withValue } from './config-draft.ts';
import { MODEL_SIZES } from './model-sizes.ts';

/** Whether a run fits the machine that it would run on, and what would. Pure: it runs beside the page, in the planner's worker. */

/** The adapter that a run would take, and the machine's memory. */
export interface Place {
  readonly profile: AdapterProfile;
  /** The adapter's own memory; null where its buffers are host memory, or where it is not known. */
  readonly memoryBytes: number | null;
  /** What all ranks together may take of the host's. */
  readonly freeHostBytes: number;
}

/** What all ranks on one memory need of it, and what it has. */
export interface Need {
  readonly of: 'host' | 'adapter';
  readonly neededBytes: number;
  readonly hasBytes: number;
}

/** Settings with which the run would fit. */
export interface FittingHere {
  /** As a person reads it: "SHARD_GRAD_OP", "the size medium". */
  readonly label: string;
  /** By dotted path. */
  readonly changes: Readonly<Record<string, unknown>>;
  readonly neededBytes: number;
  readonly estimateMs: number;
}

export interface HereVerdict {
  readonly estimateMs: number | null;
  /** What the ranks need of each memory, the fullest first; empty where it cannot be said. */
  readonly needs: readonly Need[];
  /** What there is too little of; null where the run fits. */
  readonly lacks: Need | null;
  /** Why the adapter cannot run it at all; null where it can. */
  readonly refused: string | null;
  /** Where it does not fit: what would, the least changed first. */
  readonly ways: readonly FittingHere[];
}

const MOST_WAYS = 3;

/** What of a machine's memory a run needs more of than there is; null where it fits. */
export function lackOf(plan: Pick<Prediction, 'peakBytes' | 'hostBytes' | 'world'>, place: Place): Need | null {
  return needsOf(plan, place).find(({ neededBytes, hasBytes }) => neededBytes > hasBytes) ?? null;
}

function needsOf({ peakBytes, hostBytes, world }: Parameters<typeof lackOf>[0], place: Place): Need[] {
  const { profile, memoryBytes, freeHostBytes } = place;
  // As the engine looks for it before a run starts: a software adapter's buffers are host memory too.
  const host = { of: 'host' as const, neededBytes: (hostBytes + (profile.software ? peakBytes : 0)) * world };
  const needs: Need[] = [{ ...host, hasBytes: freeHostBytes }];
  if (!profile.software && memoryBytes !== null)
    needs.push({ of: 'adapter', neededBytes: peakBytes * ranksPerAdapter(profile, world), hasBytes: memoryBytes });
  return needs;
}

/** Plans a config for the place that it would run on. `vocabSize`: of its data, where the config leaves it out. */
export function verdictHere(config: ExperimentConfig, place: Place): HereVerdict {
  let plan: Prediction;
  try {
    plan = planExperiment(config, place.profile);
  } catch (error) {
    return {
      estimateMs: null,
      needs: [],
      lacks: null,
      refused: (error as Error).message,
      ways: waysFor(config, place),
    };
  }
  const lacks = lackOf(plan, place);
  const share = ({ neededBytes, hasBytes }: Need) => neededBytes / Math.max(1, hasBytes);
  const needs = needsOf(plan, place).sort((a, b) => share(b) - share(a));
  return { estimateMs: plan.estimateMs, needs, lacks, refused: null, ways: lacks ? waysFor(config, place) : [] };
}

function waysFor(config: ExperimentConfig, place: Place): FittingHere[] {
  const found: FittingHere[] = [];
  for (const { label, changes } of candidates(config, place)) {
    const changed = checkConfig(
      Object.entries(changes).reduce<Draft>((draft, [path, to]) => withValue(draft, path, to), config),
    );
    if (found.length === MOST_WAYS || !changed.config) continue;
    try {
      const plan = planExperiment(changed.config, place.profile);
      if (lackOf(plan, place)) continue;
      const neededBytes = Math.max(...needsOf(plan, place).map((need) => need.neededBytes));
      found.push({ label, changes, neededBytes, estimateMs: plan.estimateMs ?? 0 });
    } catch {
      // What the planner refuses is no way out.
      continue;
    }
    // Still smaller ones fit as well.
    if (label.startsWith(SIZE)) break;
  }
  return found;
}

const SIZE = 'the size ';

/** Another strategy, then one rank, then a smaller model of the same kind, the largest of them first. */
function* candidates(config: ExperimentConfig, { profile }: Place): Generator<Pick<FittingHere, 'label' | 'changes'>> {
  for (const settings of thriftierSettings(config, [])) {
    const strategy = settings['strategy.shardingStrategy'];
    const offload = 'strategy.cpuOffload' in settings;
    const recomputes = 'strategy.activationCheckpointingPolicy' in settings;
    if (strategy === undefined || recomputes || 'data.batchSize' in settings) continue;
    // What leaves a software adapter's buffers takes the same memory again.
    if (offload && profile.software) continue;
    const changed = withSettings(config, settings);
    if (changed) yield { label: offload ? 'CPU offload' : String(strategy), changes: { strategy: changed.strategy } };
  }
  if (profile.software && config.devices > 1) yield { label: 'one rank', changes: { devices: 1 } };
  const sizes = MODEL_SIZES.filter(({ model }) => model.kind === config.model.kind);
  for (const { label, model } of sizes.sort((a, b) => b.params - a.params)) {
    // The vocabulary stays that of the data.
    const fields = Object.entries(model).filter(([key]) => key !== 'kind' && key !== 'vocabSize');
    yield {
      label: `${SIZE}${label}`,
      changes: Object.fromEntries(fields.map(([key, value]) => [`model.${key}`, value])),
    };
  }
}
