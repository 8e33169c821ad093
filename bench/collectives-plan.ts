import { CONTROL_ELEMENTS } from '../engine/ops/control.ts';
import { shardLayout } from '../engine/ops/shard/layout.ts';
import {
  allReduce,
  type CollectiveName,
  flushAllReduces,
  gather,
  publishShard,
  reduceScatter,
} from '../engine/schedule/collectives.ts';
import type { ExecutableRun } from '../engine/schedule/compile.ts';
import { Draft } from '../engine/schedule/draft.ts';
import { withLifetimes } from '../engine/schedule/lifetimes.ts';
import { countDispatches, packMemory } from '../engine/schedule/memory.ts';
import { shardGroup } from '../engine/schedule/mesh.ts';
import { packingLives } from '../engine/schedule/packing-lives.ts';
import type { AdapterProfile } from '../engine/schedule/profile.ts';
import { listReport } from '../engine/schedule/report.ts';
import type { Schedule } from '../engine/schedule/schedule.ts';
import { constantTable, shardingOf } from '../engine/schedule/storage.ts';
import { verify } from '../engine/schedule/verify.ts';
import { withWaits } from '../engine/schedule/waits.ts';

export const COLLECTIVES = ['all-gather', 'reduce-scatter', 'all-reduce'] as const;
export type CollectiveKind = (typeof COLLECTIVES)[number];

/** What a rank's process is to do. */
export interface RankTask {
  readonly adapterId: string;
  readonly rank: number;
  readonly world: number;
  readonly units: number;
  readonly unitBytes: number;
  readonly rounds: number;
  readonly sharedFolder: string;
}

/** Bytes that a rank copies to the device and from it. */
export interface Traffic {
  readonly upBytes: number;
  readonly downBytes: number;
}

/** What it measured, all ranks at the same time. */
export interface RankReport {
  readonly upBytesPerSecond: number;
  readonly downBytesPerSecond: number;
  readonly traffic: Readonly<Record<CollectiveKind, Traffic>>;
  /** For each round. */
  readonly ms: Readonly<Record<CollectiveKind, readonly number[]>>;
}

export type PlanInput = Pick<RankTask, 'rank' | 'world' | 'units' | 'unitBytes'> & { readonly profile: AdapterProfile };

/**
 * A run of three schedules over one memory and one set of mailboxes, in the order of COLLECTIVES: each does one collective
 * for every unit, in the pieces and through the slots of training.
 */
export function collectivesRun({ rank, world, units, unitBytes, profile }: PlanInput): ExecutableRun {
  const drafted: Draft[] = [];
  for (const kind of COLLECTIVES) {
    const draft = new Draft(rank, world, profile, drafted.at(-1)?.regions);
    const control = draft.state('control', CONTROL_ELEMENTS * 4, 'workspace');
    for (let unit = 0; unit < units; unit++) {
      listUnit(draft, kind, `unit ${unit}`, unitBytes / 4);
      listVisit(draft, `unit ${unit}`);
    }
    flushAllReduces(draft);
    listReport(draft, control, CONTROL_ELEMENTS * 4);
    drafted.push(draft);
  }
  const dated = drafted.map(withLifetimes);
  const programs = drafted.map((draft, i) => ({
    tensors: draft.tensors,
    // As much as in training, where it is little beside what else a step holds.
    lives: packingLives(draft.tensors, dated[i].steps, dated[i].lives, draft.spareBytes(), Number.POSITIVE_INFINITY),
    dispatchCount: countDispatches(dated[i].steps),
  }));
  const memory = packMemory(programs, profile);
  const { regions } = drafted[drafted.length - 1];
  const steps = drafted.map((draft, i) => {
    const { steps: list, lives } = dated[i];
    const waited = withWaits(draft.tensors, list, lives, memory.placements[i]);
    const schedule: Schedule = { rank, world, tensors: draft.tensors, steps: waited, regions };
    verify(schedule);
    return { schedule, placements: memory.placements[i], uniformOffsetBytes: memory.uniformOffsets[i] };
  });
  return { rank, steps, memory, regions, slotWaits: 0, evaluation: null, init: { device: null } };
}

/** What a rank copies to the device and from it in one of the schedules. */
export function trafficOf({ steps }: Schedule): Traffic {
  const bytes = (type: 'collect' | 'publish') =>
    steps.reduce((sum, { action }) => sum + (action.type === type ? action.staging.bytes : 0), 0);
  return { upBytes: bytes('collect'), downBytes: bytes('publish') };
}

function listUnit(draft: Draft, kind: CollectiveKind, unit: string, elements: number): void {
  const layout = shardLayout([{ name: unit, rows: elements, rowLength: 1 }], draft.world);
  const table = constantTable(draft, `table ${unit}`, layout);
  const sharding = shardingOf(layout, table, shardGroup({ replicate: 1, shard: draft.world }, draft.rank));
  const c: CollectiveName = { kind, unit, phase: 'backward', name: `${kind} ${unit}` };
  const scale = 1 / draft.world;
  if (kind === 'all-gather') {
    const source = draft.whole(draft.state(`shard ${unit}`, layout.shardElements * 4, 'parameters'));
    const target = draft.whole(draft.tensor(`gathered ${unit}`, layout.fullElements * 4, 'gathered'));
    const regions = publishShard(draft, c, { source, type: 'f32', wire: 'f32' }, sharding, 1);
    gather(draft, c, { source, target, sharding, regions });
    return;
  }
  const full = draft.whole(draft.state(`full ${unit}`, layout.fullElements * 4, 'gradients'));
  const reduction = { scale, accumulate: false };
  if (kind === 'all-reduce') {
    allReduce(draft, c, { full, sharding, reduction, wire: 'f32' }, () => undefined);
    return;
  }
  const target = draft.whole(draft.tensor(`reduced ${unit}`, layout.shardElements * 4, 'gradients'));
  reduceScatter(draft, c, { full, target, sharding, reduction, wire: 'f32' });
}

/** An empty visit, where training would compute: room is handed over by visits. */
function listVisit(draft: Draft, unit: string): void {
  const action = { type: 'free' } as const;
  const visit = draft.nextVisit();
  draft.list({ kind: 'free', lane: 'compute', phase: 'backward', label: `visit ${unit}`, unit, visit, action });
}
