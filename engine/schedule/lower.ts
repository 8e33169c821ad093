import type { OptimizerConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import { batchName } from '../model/dropout-sites.ts';
import { CONTROL_ELEMENTS, CONTROL_HOST_ELEMENTS } from '../ops/control.ts';
import { bytesOf, type Call, elementsOf, type Role, type Value } from '../ops/graph.ts';
import {
  allReduce,
  type CollectiveName,
  gather,
  gatherFromHosts,
  gatherReduced,
  publishShard,
  type Reduction,
  reduceScatter,
} from './collectives.ts';
import { Draft } from './draft.ts';
import { NormRows } from './norm-rows.ts';
import { listStore } from './offload.ts';
import { type Clipping, listOptimizer } from './optimizer-steps.ts';
import type { AdapterProfile } from './profile.ts';
import type { Category, Range, Region, Tensor } from './schedule.ts';
import { type StoredGroup, storeGroups } from './storage.ts';
import { type Gather, type StrategyPlan, visitsOf } from './strategies/strategy.ts';
import type { UnitProgram, Visit } from './unit-program.ts';

export interface LowerInput {
  readonly program: UnitProgram;
  readonly strategy: StrategyPlan;
  readonly optimizer: OptimizerConfig;
  readonly clipping: Clipping;
  readonly stopOnNonFinite: boolean;
  /** A slower link between the rows of the mesh; null: the machine's own. */
  readonly linkGBps: number | null;
  /** Whether parameters, gradients and optimizer state are kept on the host. */
  readonly cpuOffload: boolean;
  /** For a forward-only pass: the training step whose state and mailboxes it shares. */
  readonly training: TrainingStepPlan | null;
  /** Optimizer steps of the run: how far the table of bias corrections reaches. */
  readonly steps: number;
  readonly rank: number;
  readonly world: number;
  readonly profile: AdapterProfile;
}

/** What a forward-only pass has to know of training. */
export interface TrainingStepPlan {
  readonly strategy: StrategyPlan;
  readonly regions: readonly Region[];
}

export interface Lowered {
  readonly draft: Draft;
  readonly groups: readonly StoredGroup[];
  readonly control: Tensor;
}

/**
 * Lists the steps of one rank in the one total order: batch, shards to the peers, then visit by visit with the gathers,
 * frees and reductions that the strategy decided, then norm and optimizer, then the report. Lifetimes, memory and waits
 * are later passes.
 */
export function lower(input: LowerInput): Lowered {
  const { program, strategy, optimizer, training } = input;
  const draft = new Draft(input.rank, input.world, input.profile, training?.regions);
  const gathersOf = (group: number) => gathersIn(training?.strategy ?? strategy, group);
  const hostGathers = input.cpuOffload ? gathersOf : null;
  const groups = storeGroups(draft, program.model, strategy, optimizer, input.linkGBps, hostGathers);
  const control = draft.state('control', CONTROL_ELEMENTS * 4, 'workspace');
  const rows = new NormRows(draft, program.model, strategy.mesh, groups);
  const body = new Body(input, draft, groups, control, rows);
  body.list();
  if (!training) listOptimizer({ ...input, draft, groups, control, reduced: body.reduced, rows: body.rows });
  const reportStaging = draft.stagingSlot('download', 'report', 1, readStagingBytes(draft, groups));
  draft.list({
    kind: 'download',
    lane: 'host',
    phase: 'optimizer',
    label: 'report',
    unit: 'root',
    visit: draft.nextVisit(),
    action: {
      type: 'report',
      control: draft.whole(control),
      staging: { ...reportStaging, bytes: CONTROL_ELEMENTS * 4 },
      region: draft.region('report', CONTROL_ELEMENTS * 4, 1),
    },
  });
  return { draft, groups, control };
}

/** How often a step gathers a group. */
function gathersIn({ gathers }: StrategyPlan, group: number): number {
  return gathers.filter((g) => g.groups.includes(group)).length;
}

/** Most that a rank without peers reads of its state at once: a save then runs at the speed of copies, not of round trips. */
const READ_STAGING_BYTES = 4 * 2 ** 20;

/** Reads between steps use the largest download slot. Ranks with peers have those of the collectives. */
function readStagingBytes({ world, profile }: Draft, groups: readonly StoredGroup[]): number {
  if (world > 1) return CONTROL_ELEMENTS * 4;
  const largest = Math.max(...groups.map((g) => g.parameters.bytes));
  return Math.max(CONTROL_ELEMENTS * 4, Math.min(READ_STAGING_BYTES, profile.stagingSlotBytes, largest));
}

const categoryOfRole: Readonly<Record<Exclude<Role, 'parameter' | 'parameter-gradient' | 'control'>, Category>> = {
  activation: 'activations',
  workspace: 'workspace',
  batch: 'workspace',
  constant: 'workspace',
};

/** Gathered groups that are freed together: of which gather, and after which call of the visit. */
interface Ending {
  readonly index: number;
  readonly group: number;
  readonly after: number;
  readonly releases: number[];
}

/** Forward and backward of one rank being listed. */
class Body {
  /** What the optimizer reads of each group: its reduced gradients. */
  readonly reduced: (Tensor | undefined)[] = [];
  private readonly tensors = new Map<number, Tensor>();
  /** Gradients as backward writes them, by group and round. */
  private readonly gradients: (Tensor | undefined)[][];
  /** Of groups that travel between rows: the sum over them, this rank's chunk. */
  private readonly chunks: (Tensor | undefined)[] = [];
  /** Where kernels find each group's parameters now. */
  private readonly current: Range[];
  private readonly regions: (readonly number[] | undefined)[] = [];
  /** For each gather, the tensors that hold its groups. */
  private readonly gathered: Tensor[][] = [];
  /** For each gather, the step that frees it, and the first that uses it. */
  private readonly freeSteps: number[] = [];
  private readonly firstUses: number[] = [];
  /** Visits that use each group's parameters. */
  private readonly uses: (readonly number[])[] = [];
  private readonly place = new Map<string, { group: number; offsetBytes: number }>();
  private lastComputeStep = 0;

  constructor(
    private readonly input: LowerInput,
    private readonly draft: Draft,
    private readonly groups: readonly StoredGroup[],
    control: Tensor,
    readonly rows: NormRows,
  ) {
    this.tensors.set(input.program.control.id, control);
    this.current = groups.map((g) => draft.whole(g.parameters));
    this.gradients = groups.map(() => []);
    groups.forEach(({ layout }, group) => {
      for (const s of layout.segments) this.place.set(s.name, { group, offsetBytes: s.fullOffset * 4 });
    });
  }

  list(): void {
    const { visits } = this.input.program;
    this.listFeed();
    this.listShardPublications();
    visits.forEach((visit, v) => {
      this.listGathers(v, false);
      this.listReductions(v - 1);
      this.listGathers(v, true);
      this.listVisit(visit, v);
    });
    this.listReductions(visits.length - 1);
  }

  private listFeed(): void {
    const { draft } = this;
    const microBatches = this.input.program.microBatchStarts.map((_, m) => m);
    const batch = (name: 'input' | 'target') =>
      microBatches.map((m) => {
        const value = this.input.program.values.find((v) => v.role === 'batch' && v.name === batchName(name, m));
        if (!value) throw new StudioError('internal', `the model reads no batch tensor ${batchName(name, m)}`);
        return this.rangeOf(value);
      });
    draft.list({
      kind: 'upload',
      lane: 'host',
      phase: 'forward',
      label: 'batch',
      unit: 'root',
      visit: draft.nextVisit(),
      action: {
        type: 'feed',
        inputs: batch('input'),
        targets: batch('target'),
        control: { ...this.rangeOf(this.input.program.control), bytes: CONTROL_HOST_ELEMENTS * 4 },
      },
    });
  }

  /** Shards do not change within a step: each is published once, and every gather reads that. */
  private listShardPublications(): void {
    const { gathers } = this.input.strategy;
    for (const group of gathers.flatMap((g) => g.groups)) {
      if (this.regions[group]) continue;
      const { group: unit, parameters, shards } = this.groups[group];
      if (parameters.region !== undefined) {
        this.regions[group] = [parameters.region];
        this.listAnnouncement(unit.name, parameters.region);
        continue;
      }
      const name = { kind: 'all-gather', unit: unit.name, phase: 'forward', name: `shard ${unit.name}` } as const;
      const reads = gathersIn(this.input.training?.strategy ?? this.input.strategy, group);
      this.regions[group] = publishShard(this.draft, name, this.draft.whole(parameters), shards!, reads);
    }
  }

  /** With offload the shard is published where it lies. */
  private listAnnouncement(unit: string, region: number): void {
    this.draft.list({
      kind: 'download',
      lane: 'host',
      phase: 'forward',
      label: `announce ${unit}`,
      unit,
      visit: this.draft.nextVisit(),
      action: { type: 'announce', region },
    });
  }

  private listGathers(visit: number, afterReductions: boolean): void {
    this.input.strategy.gathers.forEach((g, index) => {
      if (g.issueBeforeVisit === visit && g.afterReductions === afterReductions) this.listGather(g, index);
    });
  }

  private listGather(g: Gather, index: number): void {
    const { draft } = this;
    const after = [
      ...(g.afterVisitBefore ? [this.lastComputeStep] : []),
      ...(g.afterFreeOf === null ? [] : [this.freeSteps[g.afterFreeOf]]),
      ...(g.afterUseOf === null ? [] : [this.firstUses[g.afterUseOf]]),
    ];
    this.gathered[index] = g.groups.map((number) => {
      const { group, layout, parameters, shards } = this.groups[number];
      const target = draft.tensor(`gathered ${group.name} ${g.name}`, layout.fullElements * 4, 'gathered');
      const c = { kind: 'all-gather', unit: group.name, phase: g.phase, name: `${group.name} ${g.name}` } as const;
      // Peers count reads by what training makes of a publication; this pass gathers once.
      const extraReads = this.input.training ? gathersIn(this.input.training.strategy, number) - 1 : 0;
      if (parameters.space === 'host') {
        gatherFromHosts(draft, c, {
          host: parameters,
          target: draft.whole(target),
          sharding: shards!,
          after,
          extraReads,
        });
        return target;
      }
      const source = draft.whole(parameters);
      const regions = this.regions[number]!;
      gather(draft, c, { source, target: draft.whole(target), sharding: shards!, regions, after, extraReads });
      return target;
    });
  }

  private listVisit(visit: Visit, v: number): void {
    const open = this.input.strategy.gathers
      .map((g, index) => ({ g, index }))
      .filter(({ g }) => g.firstVisit <= v && v <= g.lastVisit);
    for (const { g, index } of open)
      g.groups.forEach((group, i) => {
        this.current[group] = this.draft.whole(this.gathered[index][i]);
      });
    const number = this.draft.nextVisit();
    const ending = open.flatMap(({ g, index }) => this.endingsOf(g, index, visit, v));
    visit.calls.forEach((call, position) => {
      this.listCall(call, visit, number);
      for (const { g, index } of open) if (g.firstVisit === v) this.firstUses[index] ??= this.lastComputeStep;
      for (const end of ending) if (end.after === position) this.listFree(end, visit, number);
    });
    // Kept to the end of a pass whose last visit does not use them.
    for (const end of ending) if (end.after < 0) this.listFree(end, visit, number);
  }

  /** What of a gather ends in a visit, and after which of its calls: each group of the unit after its own last use. */
  private endingsOf(g: Gather, index: number, visit: Visit, v: number): Ending[] {
    const lastVisits = g.groups.map((group) => this.usesOf(group).findLast((use) => use <= g.lastVisit) ?? -1);
    const kept = Math.max(...lastVisits) < g.lastVisit;
    const endings: Ending[] = [];
    g.groups.forEach((group, i) => {
      if (v !== (kept ? g.lastVisit : lastVisits[i])) return;
      const after = lastUse(visit, this.groups[group]);
      const same = endings.find((e) => e.after === after);
      const tensor = this.gathered[index][i].id;
      if (same) same.releases.push(tensor);
      else endings.push({ index, group, after, releases: [tensor] });
    });
    return endings;
  }

  /** The visits that use a group's parameters. */
  private usesOf(group: number): readonly number[] {
    this.uses[group] ??= visitsOf(this.input.program, this.groups[group].group.parameters, 'parameter');
    return this.uses[group];
  }

  private listCall(call: Call, { phase, unit }: Visit, visit: number): void {
    const { draft } = this;
    const operands = call.operands.map((value) => this.rangeOf(value));
    this.lastComputeStep = draft.list({
      kind: 'compute',
      lane: 'compute',
      phase,
      label: call.kernel.name,
      unit: this.input.program.units[unit].name,
      visit,
      action: { type: 'dispatch', dispatch: draft.dispatch(call.kernel, operands, call.params) },
    });
  }

  private listFree({ index, group, releases }: Ending, { phase }: Visit, visit: number): void {
    const unit = this.groups[group].group.name;
    const action = { type: 'free' } as const;
    const step = {
      kind: 'free',
      lane: 'compute',
      phase,
      label: `free ${unit}`,
      unit,
      visit,
      action,
      releases,
    } as const;
    this.freeSteps[index] = this.draft.list(step);
  }

  /** Reduces the groups of which a round of gradients is complete after that visit. */
  private listReductions(visit: number): void {
    this.groups.forEach(({ group }, index) => {
      group.reduceAfterVisits.forEach((after, round) => {
        if (after === visit) this.listReduction(index, round, round === group.reduceAfterVisits.length - 1);
      });
    });
  }

  /**
   * One round of a group's gradients: within the row to this rank's shard, then between the rows a chunk at a time, added
   * to the rounds before; after the last, the chunks are gathered again. With offload the sum then goes to the host.
   */
  private listReduction(index: number, round: number, isLast: boolean): void {
    const { draft } = this;
    const { group, layout, shards, replicas } = this.groups[index];
    const whole = this.gradients[index][round];
    if (!whole) throw new StudioError('internal', `no kernel writes the gradients of ${group.name}`);
    const tag = group.reduceAfterVisits.length > 1 ? ` ${round}` : '';
    const c = { unit: group.name, phase: 'backward', name: `gradients ${group.name}${tag}` } as const;
    const mean = { scale: 1 / this.input.world, accumulate: round > 0 };
    let full = draft.whole(whole);
    if (shards && shards.group.ranks.length > 1) {
      const bytes = layout.shardElements * 4;
      if (!replicas) this.reduced[index] ??= draft.tensor(`reduced gradients ${group.name}`, bytes, 'gradients');
      const target = this.reduced[index] ?? draft.tensor(`row ${c.name}`, bytes, 'gradients');
      const reduction = replicas ? { scale: 1, accumulate: false } : mean;
      const kind = 'reduce-scatter';
      reduceScatter(draft, { ...c, kind }, { full, target: draft.whole(target), sharding: shards, reduction });
      full = draft.whole(target);
    }
    if (replicas) {
      const between = { ...c, kind: 'all-reduce', name: `${c.name} rows` } as const;
      if (group.reduceAfterVisits.length === 1)
        allReduce(draft, between, { full, sharding: replicas, reduction: mean });
      else this.listRound(index, between, full, mean, isLast);
    }
    this.reduced[index] = draft.tensors[full.tensor];
    if (isLast) this.listHostGradients(index);
  }

  /** One of several rounds between rows: the rank's chunk of the sum is kept until the last has been added. */
  private listRound(index: number, c: CollectiveName, full: Range, reduction: Reduction, isLast: boolean): void {
    const { draft } = this;
    const { group, replicas: sharding } = this.groups[index];
    if (!sharding) return;
    this.chunks[index] ??= draft.tensor(`reduced ${group.name}`, sharding.shardElements * 4, 'workspace');
    const reduced = this.chunks[index];
    reduceScatter(draft, c, { full, target: draft.whole(reduced), sharding, reduction });
    if (isLast) gatherReduced(draft, c, { reduced, target: full, sharding });
  }

  /** With offload the norm's row sums are taken while the gradients are on the device; then they are stored. */
  private listHostGradients(index: number): void {
    const { group, hostGradients } = this.groups[index];
    const gradients = this.reduced[index];
    if (!hostGradients || !gradients) return;
    this.rows.listLocal(index, gradients, this.draft.nextVisit(), 'backward');
    listStore(this.draft, group.name, 'backward', [{ device: gradients, host: hostGradients }]);
  }

  private rangeOf(value: Value): Range {
    if (value.role === 'parameter' || value.role === 'parameter-gradient') {
      const { group, offsetBytes } = this.place.get(value.role === 'parameter' ? value.name : value.parameter!)!;
      const base =
        value.role === 'parameter' ? this.current[group] : this.draft.whole(this.gradientsOf(group, value.round ?? 0));
      return { tensor: base.tensor, offsetBytes: base.offsetBytes + offsetBytes, bytes: elementsOf(value.shape) * 4 };
    }
    let tensor = this.tensors.get(value.id);
    if (!tensor && value.role !== 'control') {
      const name = `${value.name} #${value.id}`;
      tensor = value.data
        ? this.draft.constant(value.name, bytesOf(value), value.data)
        : this.draft.tensor(name, bytesOf(value), categoryOfRole[value.role]);
      this.tensors.set(value.id, tensor);
    }
    return this.draft.whole(tensor!);
  }

  /** The gradients of a group as backward writes them, before any reduction. */
  private gradientsOf(index: number, round: number): Tensor {
    const { group, layout, shards } = this.groups[index];
    const tag = group.reduceAfterVisits.length > 1 ? ` ${round}` : '';
    const name = `${shards ? 'whole gradients' : 'gradients'} ${group.name}${tag}`;
    this.gradients[index][round] ??= this.draft.tensor(name, layout.fullElements * 4, 'gradients');
    return this.gradients[index][round];
  }
}

/** Position in the visit of the last call that uses a parameter of the group, or −1. */
function lastUse(visit: Visit, { group }: StoredGroup): number {
  const own = new Set(group.parameters);
  return visit.calls.findLastIndex((call) => call.operands.some((o) => o.role === 'parameter' && own.has(o.name)));
}
