import type { OptimizerConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import { batchName } from '../model/dropout-sites.ts';
import { CONTROL_ELEMENTS, CONTROL_HOST_ELEMENTS } from '../ops/control.ts';
import { bytesOf, type Call, type Role, type Value } from '../ops/graph.ts';
import { packHalf } from '../ops/half/pack-half.ts';
import { roundHalf } from '../ops/half/round-half.ts';
import { dtypeBytes, type Kernel, type Params } from '../ops/kernel.ts';
import type { ShardSegment } from '../ops/shard/layout.ts';
import {
  allReduce,
  type CollectiveName,
  flushAllReduces,
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
import { OffloadedUpdates } from './offloaded-updates.ts';
import { listAdvance, listOptimizer, type OptimizerInput } from './optimizer-steps.ts';
import { refuseTooMany } from './planning-limits.ts';
import type { FloatType, Precision } from './precision.ts';
import type { AdapterProfile } from './profile.ts';
import { listReport } from './report.ts';
import type { Category, Range, Region, StepPhase, Tensor } from './schedule.ts';
import { type StoredGroup, storeGroups } from './storage.ts';
import { type Gather, type StrategyPlan, visitsOf } from './strategies/strategy.ts';
import type { UnitProgram, Visit } from './unit-program.ts';
import type { Clipping } from './updates.ts';

export interface LowerInput {
  readonly program: UnitProgram;
  readonly strategy: StrategyPlan;
  readonly precision: Precision;
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
  /** Whether units are updated in backward, before the norm is known. */
  readonly updatesInBackward: boolean;
}

/**
 * Lists the steps of one rank in the one total order: batch, shards to the peers, then visit by visit with the gathers,
 * frees and reductions that the strategy decided, then norm and optimizer, then the report. Lifetimes, memory and waits
 * are later passes. Throws `invalid-config` for more than these can be planned for in a minute.
 */
export function lower(input: LowerInput): Lowered {
  const { program, strategy, optimizer, training } = input;
  refuseTooMany('groups of parameters and gathers of them', strategy.groups.length + strategy.gathers.length);
  const draft = new Draft(input.rank, input.world, input.profile, training?.regions);
  const gathersOf = (group: number) => gathersIn(training?.strategy ?? strategy, group);
  const inBackward = updatesInBackward(input, training?.strategy ?? strategy);
  const offload = input.cpuOffload ? { gathersOf, keepsGradients: !inBackward } : null;
  const groups = storeGroups(draft, program.model, strategy, optimizer, input.linkGBps, offload, input.precision);
  const control = draft.state('control', CONTROL_ELEMENTS * 4, 'workspace');
  const rows = new NormRows(draft, program.model, strategy.mesh, groups, input.precision.kept);
  const updates =
    input.cpuOffload && !training
      ? new OffloadedUpdates({ ...input, ...updatesOf(input, inBackward), draft, groups, control })
      : null;
  const offloaded = updates && { updates, inBackward };
  const body = new Body(input, draft, groups, control, rows, offloaded);
  body.list();
  if (!training) listOptimizer({ ...input, draft, groups, control, rows, offloaded, reduced: body.reduced });
  listReport(draft, control, readStagingBytes(draft, groups));
  refuseTooMany('parts in its schedule', draft.steps.length);
  return { draft, groups, control, updatesInBackward: inBackward };
}

/** How often a step gathers a group. */
function gathersIn({ gathers }: StrategyPlan, group: number): number {
  return gathers.filter((g) => g.groups.includes(group)).length;
}

/**
 * With offload: whether each unit is updated as soon as its gradients are reduced. So where nothing has to be known of all
 * gradients first, and no gather of a unit comes after its reduction, which would read what the update has written.
 */
function updatesInBackward(input: LowerInput, { groups, gathers }: StrategyPlan): boolean {
  if (!input.cpuOffload || !input.stopOnNonFinite) return false;
  if (input.clipping.maxNorm !== null || input.precision.scalesLoss) return false;
  return groups.every(({ reduceAfterVisits }, index) => {
    const reduced = reduceAfterVisits.at(-1);
    if (reduced === undefined) return true;
    const before = ({ issueBeforeVisit, afterReductions }: Gather) =>
      issueBeforeVisit <= reduced || (issueBeforeVisit === reduced + 1 && !afterReductions);
    return gathers.every((g) => !g.groups.includes(index) || before(g));
  });
}

/** The order of the updates of what is kept on the host, and which of them find their parameters on the device. */
function updatesOf({ program, strategy, precision }: LowerInput, inBackward: boolean) {
  const { groups, gathers } = strategy;
  const order = groups.map((_, index) => index).filter((index) => groups[index].trainable);
  if (!inBackward) return { order, keepsParameters: () => false };
  const reducedAfter = (index: number) => groups[index].reduceAfterVisits.at(-1)!;
  order.sort((a, b) => reducedAfter(a) - reducedAfter(b) || a - b);
  const keepsParameters = (index: number) => {
    const last = gathers.findLast((g) => g.groups.includes(index));
    if (!last || precision.kept === 'f16') return false;
    const use = visitsOf(program, groups[index].parameters, 'parameter').findLast((v) => v <= last.lastVisit);
    return use !== undefined && program.visits[use].phase === 'backward';
  };
  return { order, keepsParameters };
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

/** A part of a group's parameters that a visit needs as halves and that the rank keeps whole in float32. */
interface HalfCopy {
  readonly group: number;
  /** Position in the visit of the call that uses it first. */
  readonly before: number;
  readonly first: ShardSegment;
  readonly endElement: number;
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
  private readonly place = new Map<string, { group: number; segment: ShardSegment }>();
  private lastComputeStep = 0;
  /** Groups whose gradients are reduced and that are not updated yet, where updates run in backward. */
  private readonly toUpdate: number[] = [];
  private hasAdvanced = false;

  constructor(
    private readonly input: LowerInput,
    private readonly draft: Draft,
    private readonly groups: readonly StoredGroup[],
    private readonly control: Tensor,
    private readonly rows: NormRows,
    private readonly offloaded: OptimizerInput['offloaded'],
  ) {
    this.tensors.set(input.program.control.id, control);
    this.current = groups.map((g) => draft.whole(g.parameters));
    this.gradients = groups.map(() => []);
    groups.forEach(({ layout }, group) => {
      for (const segment of layout.segments) this.place.set(segment.name, { group, segment });
    });
  }

  list(): void {
    const { visits } = this.input.program;
    this.listFeed();
    this.listShardPublications();
    visits.forEach((visit, v) => {
      this.listGathers(v, false);
      const before = this.toUpdate.length;
      this.listReductions(v - 1);
      // What peers are asked for only now is not waited for before the next unit is computed.
      this.listUpdates(this.draft.world > 1 ? before : this.toUpdate.length, 'backward');
      this.listGathers(v, true);
      this.listVisit(visit, v);
    });
    this.listReductions(visits.length - 1);
    flushAllReduces(this.draft);
    this.listUpdates(this.toUpdate.length, 'optimizer');
  }

  /** Updates the first `count` groups whose gradients are reduced: row sums for the norm, then a window at a time. */
  private listUpdates(count: number, phase: StepPhase): void {
    const { draft, input, control, offloaded } = this;
    for (const index of this.toUpdate.splice(0, count)) {
      if (!this.hasAdvanced) listAdvance({ ...input, draft, control });
      this.hasAdvanced = true;
      const gradients = this.reduced[index]!;
      this.rows.listLocal(index, gradients, draft.nextVisit(), phase);
      offloaded!.updates.list(index, gradients, phase);
    }
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
      if (parameters.space === 'host') {
        this.regions[group] = [];
        if (parameters.region !== undefined) this.listAnnouncement(unit.name, parameters.region);
        continue;
      }
      const name = { kind: 'all-gather', unit: unit.name, phase: 'forward', name: `shard ${unit.name}` } as const;
      const reads = gathersIn(this.input.training?.strategy ?? this.input.strategy, group);
      this.regions[group] = publishShard(
        this.draft,
        name,
        { ...this.stored(parameters), wire: this.used },
        shards!,
        reads,
      );
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
      const target = draft.tensor(
        `gathered ${group.name} ${g.name}`,
        layout.fullElements * dtypeBytes[this.used],
        'gathered',
      );
      const c = { kind: 'all-gather', unit: group.name, phase: g.phase, name: `${group.name} ${g.name}` } as const;
      // Peers count reads by what training makes of a publication; this pass gathers once.
      const extraReads = this.input.training ? gathersIn(this.input.training.strategy, number) - 1 : 0;
      if (parameters.space === 'host') {
        gatherFromHosts(draft, c, {
          host: parameters,
          type: this.input.precision.kept,
          used: this.used,
          target: draft.whole(target),
          sharding: shards!,
          after,
          extraReads,
        });
        return target;
      }
      const regions = this.regions[number]!;
      const stored = { ...this.stored(parameters), used: this.used };
      gather(draft, c, { ...stored, target: draft.whole(target), sharding: shards!, regions, after, extraReads });
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
    const end = (e: Ending) => {
      this.listKept(e, visit, number);
      if (e.releases.length > 0) this.listFree(e, visit, number);
    };
    const copies = this.halfCopies(visit);
    visit.calls.forEach((call, position) => {
      for (const copy of copies) if (copy.before === position) this.listHalfCopy(copy, visit, v, number);
      this.listCall(call, visit, number);
      for (const { g, index } of open) if (g.firstVisit === v) this.firstUses[index] ??= this.lastComputeStep;
      for (const e of ending) if (e.after === position) end(e);
    });
    // Kept to the end of a pass whose last visit does not use them.
    for (const e of ending) if (e.after < 0) end(e);
  }

  /** What a visit uses as halves and the rank has as whole groups in float32: in each group, from the first to the last. */
  private halfCopies({ calls }: Visit): HalfCopy[] {
    const { precision, strategy } = this.input;
    if (precision.kept === precision.used) return [];
    const copies = new Map<number, HalfCopy>();
    calls.forEach((call, before) => {
      for (const { role, name } of call.operands) {
        if (role !== 'parameter') continue;
        const { group, segment } = this.place.get(name)!;
        if (strategy.gathers.some((g) => g.groups.includes(group))) continue;
        const known = copies.get(group) ?? { group, before, first: segment, endElement: 0 };
        const first = segment.fullOffset < known.first.fullOffset ? segment : known.first;
        copies.set(group, { ...known, first, endElement: Math.max(known.endElement, this.endOf(group, segment)) });
      }
    });
    return [...copies.values()];
  }

  /** Where the segment after this one begins. */
  private endOf(group: number, segment: ShardSegment): number {
    const { segments, fullElements } = this.groups[group].layout;
    return segments[segments.indexOf(segment) + 1]?.fullOffset ?? fullElements;
  }

  private listHalfCopy({ group, first, endElement }: HalfCopy, { phase }: Visit, v: number, visit: number): void {
    const { draft } = this;
    const { group: unit, parameters } = this.groups[group];
    const n = endElement - first.fullOffset;
    const copy = draft.tensor(`half ${unit.name} ${v}`, n * dtypeBytes[this.used], 'gathered');
    const params = { n, xOffset: first.fullOffset };
    this.listKernel(packHalf, [draft.whole(parameters), draft.whole(copy)], params, { phase, unit: unit.name, visit });
    this.current[group] = { tensor: copy.id, offsetBytes: -first.fullOffset * dtypeBytes[this.used], bytes: 0 };
  }

  private get used(): FloatType {
    return this.input.precision.used;
  }

  /** All of a tensor that is kept from step to step, with what it is stored as. */
  private stored(tensor: Tensor): { source: Range; type: FloatType } {
    return { source: this.draft.whole(tensor), type: this.input.precision.kept };
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
    const operands = call.operands.map((value) => this.rangeOf(value));
    const { name } = this.input.program.units[unit];
    this.lastComputeStep = this.listKernel(call.kernel, operands, call.params, { phase, unit: name, visit });
  }

  private listKernel(
    kernel: Kernel,
    operands: readonly Range[],
    params: Params,
    where: { readonly phase: StepPhase; readonly unit: string; readonly visit: number },
  ): number {
    return this.draft.list({
      kind: 'compute',
      lane: 'compute',
      label: kernel.name,
      ...where,
      action: { type: 'dispatch', dispatch: this.draft.dispatch(kernel, operands, params) },
    });
  }

  /** Where updates run in backward: what they take of the last gathering of a unit. What they need whole stays. */
  private listKept({ index, releases }: Ending, { phase }: Visit, visit: number): void {
    const { offloaded, groups, gathered } = this;
    if (!offloaded) return;
    const { gathers } = this.input.strategy;
    gathers[index].groups.forEach((group, i) => {
      const tensor = gathered[index][i];
      const place = releases.indexOf(tensor.id);
      const isLast = gathers.findLastIndex((g) => g.groups.includes(group)) === index;
      if (place < 0 || !isLast) return;
      const unit = groups[group].group.name;
      if (offloaded.updates.listKept(group, tensor, { visit, unit, phase })) releases.splice(place, 1);
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
    let wire = this.input.precision.reduced;
    if (wire === 'f16') {
      // What a rank adds of its own is what it would have sent.
      const where = { phase: c.phase, unit: group.name, visit: draft.nextVisit() };
      this.listKernel(roundHalf, [full], { n: layout.fullElements }, where);
    }
    if (shards && shards.group.ranks.length > 1) {
      const bytes = layout.shardElements * 4;
      if (!replicas) this.reduced[index] ??= draft.tensor(`reduced gradients ${group.name}`, bytes, 'gradients');
      const target = this.reduced[index] ?? draft.tensor(`row ${c.name}`, bytes, 'gradients');
      const reduction = replicas ? { scale: 1, accumulate: false } : mean;
      const kind = 'reduce-scatter';
      reduceScatter(draft, { ...c, kind }, { full, target: draft.whole(target), sharding: shards, reduction, wire });
      full = draft.whole(target);
      // A sum over a row is no half any more; between rows it travels whole, so that the order of additions is DDP's.
      wire = 'f32';
    }
    if (replicas) {
      const between = { ...c, kind: 'all-reduce', name: `${c.name} rows` } as const;
      if (group.reduceAfterVisits.length === 1) {
        allReduce(draft, between, { full, sharding: replicas, reduction: mean, wire }, () =>
          this.listReduced(index, full),
        );
        return;
      }
      this.listRound(index, between, { full, reduction: mean, wire }, isLast);
    }
    if (isLast) this.listReduced(index, full);
    else this.reduced[index] = draft.tensors[full.tensor];
  }

  /** What follows the last reduction of a group: its gradients as they are kept until the optimizer. */
  private listReduced(index: number, full: Range): void {
    this.reduced[index] = this.draft.tensors[full.tensor];
    if (this.input.precision.kept === 'f16') this.listHalfGradients(index, full);
    if (this.offloaded?.inBackward) this.toUpdate.push(index);
    else this.listHostGradients(index);
  }

  /** The reduced gradients as they are kept until the optimizer. */
  private listHalfGradients(index: number, full: Range): void {
    const { draft } = this;
    const { group, layout } = this.groups[index];
    const n = layout.shardElements;
    const halves = draft.tensor(`half gradients ${group.name}`, n * dtypeBytes.f16, 'gradients');
    const where = { phase: 'backward', unit: group.name, visit: draft.nextVisit() } as const;
    this.listKernel(packHalf, [full, draft.whole(halves)], { n, xOffset: 0 }, where);
    this.reduced[index] = halves;
  }

  /** One of several rounds between rows: the rank's chunk of the sum is kept until the last has been added. */
  private listRound(
    index: number,
    c: CollectiveName,
    round: { readonly full: Range; readonly reduction: Reduction; readonly wire: FloatType },
    isLast: boolean,
  ): void {
    const { draft } = this;
    const { group, replicas: sharding } = this.groups[index];
    if (!sharding) return;
    this.chunks[index] ??= draft.tensor(`reduced ${group.name}`, sharding.shardElements * 4, 'workspace');
    const reduced = this.chunks[index];
    reduceScatter(draft, c, { ...round, target: draft.whole(reduced), sharding });
    if (isLast) gatherReduced(draft, c, { reduced, target: round.full, sharding });
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
      const { group, segment } = this.place.get(value.role === 'parameter' ? value.name : value.parameter!)!;
      const offsetBytes = segment.fullOffset * dtypeBytes[value.dtype];
      const base =
        value.role === 'parameter' ? this.current[group] : this.draft.whole(this.gradientsOf(group, value.round ?? 0));
      return { tensor: base.tensor, offsetBytes: base.offsetBytes + offsetBytes, bytes: bytesOf(value) };
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
