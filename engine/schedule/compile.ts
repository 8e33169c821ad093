import type { ExperimentConfig } from '../config.ts';
import type { BatchShape, Model } from '../model/model.ts';
import { withLifetimes } from './lifetimes.ts';
import { lower } from './lower.ts';
import { countDispatches, type MemoryPlan, type Placement, packMemory } from './memory.ts';
import type { AdapterProfile } from './profile.ts';
import type { Region, Schedule, Tensor } from './schedule.ts';
import type { StoredGroup } from './storage.ts';
import { ddp } from './strategies/ddp.ts';
import { fullShard } from './strategies/full-shard.ts';
import { replicated } from './strategies/replicated.ts';
import type { StrategyPlan } from './strategies/strategy.ts';
import { type UnitProgram, unitProgram } from './unit-program.ts';
import { verify } from './verify.ts';
import { withWaits } from './waits.ts';

/** One rank's step for one batch shape, ready to run. */
export interface CompiledStep {
  readonly shape: BatchShape;
  readonly program: UnitProgram;
  readonly schedule: Schedule;
  /** Where each tensor lies, by id. */
  readonly placements: readonly Placement[];
  readonly uniformOffsetBytes: number;
  readonly groups: readonly StoredGroup[];
  readonly control: Tensor;
}

/** One rank's run: a step for each batch shape, over one memory. */
export interface CompiledRun {
  readonly rank: number;
  readonly world: number;
  readonly model: Model;
  /** Whether each rank keeps a shard of the parameters. */
  readonly sharded: boolean;
  readonly steps: readonly CompiledStep[];
  readonly memory: MemoryPlan;
  /** Mailbox regions; the same for every batch shape, since only parameters travel. */
  readonly regions: readonly Region[];
}

export interface CompileInput {
  readonly config: ExperimentConfig;
  readonly model: Model;
  /** The distinct batch shapes of the run; one for a corpus. */
  readonly shapes: readonly BatchShape[];
  readonly rank: number;
  readonly profile: AdapterProfile;
}

/**
 * Model and configuration to schedule: units, strategy, lowering, lifetimes, memory, waits, then the verifier. Pure; the
 * same input gives the same plan in the browser, the server and the worker. Throws StudioError.
 */
export function compileRun({ config, model, shapes, rank, profile }: CompileInput): CompiledRun {
  const world = config.devices;
  const classes = unitClasses(config, model);
  const drafted = shapes.map((shape) => {
    const program = unitProgram(model, shape, { rank, seed: config.trainer.seed }, classes);
    const strategy = strategyOf(config, program);
    const stopOnNonFinite = config.trainer.onNonFinite === 'stop';
    const { optimizer, trainer } = config;
    const lowered = lower({
      program,
      strategy,
      optimizer,
      stopOnNonFinite,
      steps: trainer.steps,
      rank,
      world,
      profile,
    });
    return { shape, program, strategy, ...lowered, ...withLifetimes(lowered.draft) };
  });
  const programs = drafted.map(({ draft, lives, steps }) => ({
    tensors: draft.tensors,
    lives,
    dispatchCount: countDispatches(steps),
  }));
  const memory = packMemory(programs, profile);
  const steps = drafted.map(({ shape, program, draft, groups, control, steps: dated, lives }, i): CompiledStep => {
    const schedule: Schedule = {
      rank,
      world,
      tensors: draft.tensors,
      steps: withWaits(draft.tensors, dated, lives, memory.placements[i]),
      regions: draft.regions,
    };
    verify(schedule);
    const uniformOffsetBytes = memory.uniformOffsets[i];
    return { shape, program, schedule, placements: memory.placements[i], uniformOffsetBytes, groups, control };
  });
  return {
    rank,
    world,
    model,
    sharded: drafted[0].strategy.sharded,
    steps,
    memory,
    regions: steps[0].schedule.regions,
  };
}

/** Classes at which the step is cut: the wrap policy, or for DDP the model's own blocks. */
function unitClasses({ strategy }: ExperimentConfig, model: Model): readonly string[] {
  if (strategy.kind === 'ddp') return model.blockClasses;
  return Array.isArray(strategy.autoWrapPolicy) ? strategy.autoWrapPolicy : [];
}

function strategyOf({ strategy, devices }: ExperimentConfig, program: UnitProgram): StrategyPlan {
  if (devices === 1) return replicated(program);
  return strategy.kind === 'ddp' ? ddp(program, strategy.bucketCapMiB) : fullShard(program, strategy);
}
