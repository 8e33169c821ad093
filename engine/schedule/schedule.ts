import type { Access, Kernel, Params, RunsAs } from '../ops/kernel.ts';

/**
 * Everything one rank does in one step of training, as data. The executor runs it on a GPU, the interpreter in plain
 * TypeScript, the planner prices it and the studio draws it. The list order is one total order, the same on every rank;
 * each lane runs its own steps in that order, and `waits` are all that lanes have to observe of each other.
 */

export const CATEGORIES = [
  'parameters',
  'gathered',
  'gradients',
  'optimizer',
  'activations',
  'workspace',
  'staging',
] as const;
/** What a tensor is for; memory is counted by these. */
export type Category = (typeof CATEGORIES)[number];

export type Lane = 'compute' | 'comm' | 'host';

export type StepKind =
  | 'compute'
  | 'all-gather'
  | 'reduce-scatter'
  | 'all-reduce'
  | 'free'
  | 'upload'
  | 'download'
  | 'optimizer';

export type StepPhase = 'forward' | 'backward' | 'optimizer';

/** Where a tensor lives: in a device slab, in a staging buffer of its own that the host maps, or (offload) on the host. */
export type Space = 'device' | 'upload' | 'download' | 'host';

export interface Tensor {
  readonly id: number;
  readonly name: string;
  readonly bytes: number;
  readonly category: Category;
  readonly space: Space;
  /** Kept from step to step: parameters, optimizer state, tables. All others live from first to last use in a step. */
  readonly state: boolean;
  /** Floats stored as halves, two to a word. Whoever reads or writes them between steps still speaks of float32. */
  readonly halves?: boolean;
  /** For a host tensor that peers read: the mailbox region that it is. */
  readonly region?: number;
  /** A host tensor in buffers that the device copies to and the host reads where they are mapped: one for each `keep`. */
  readonly mapped?: boolean;
  /** For tensors filled once, before step 0. */
  readonly contents?: Float32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>;
}

/** A part of a tensor. */
export interface Range {
  readonly tensor: number;
  readonly offsetBytes: number;
  readonly bytes: number;
}

/** One kernel over ranges of tensors, and how it runs: part of the schedule, so that every rank runs the same. */
export interface Dispatch extends RunsAs {
  readonly kernel: Kernel;
  readonly operands: readonly Range[];
  readonly params: Params;
}

/** Equally many bytes of a host tensor and a device tensor. */
export interface HostCopy {
  readonly host: Range;
  readonly device: Range;
}

export type Action =
  | { readonly type: 'dispatch'; readonly dispatch: Dispatch }
  /** The host writes this step's batches, one for each micro-batch, and the host's scalars of the control tensor. */
  | {
      readonly type: 'feed';
      readonly inputs: readonly Range[];
      readonly targets: readonly Range[];
      readonly control: Range;
    }
  /** Copies a tensor's range to the host and publishes it to the peers. `pack` prepares the range on the device. */
  | {
      readonly type: 'publish';
      readonly pack: Dispatch | null;
      readonly source: Range;
      readonly staging: Range;
      readonly region: number;
    }
  /** Takes `bytesPerPeer` of each peer's region, peers in rank order, to the device, then runs `place`. */
  | {
      readonly type: 'collect';
      readonly region: number;
      /** In rank order, without this rank. */
      readonly peers: readonly number[];
      /** Byte offset in each peer's region. */
      readonly inboxOffsets: readonly number[];
      readonly bytesPerPeer: number;
      /** With offload this rank's own bytes come from the host too: the part, and its place among the peers'. */
      readonly own: { readonly part: Range; readonly slot: number } | null;
      /** Reads of each publication that this step stands for beyond its own: a pass that gathers once less than training. */
      readonly extraReads: number;
      /** A slower link to simulate, in 10^9 bytes a second. */
      readonly linkGBps: number | null;
      readonly staging: Range;
      readonly received: Range;
      readonly place: readonly Dispatch[];
    }
  /** Publishes a host tensor that is a region: its peers may read what the step before left there. */
  | { readonly type: 'announce'; readonly region: number }
  /** Copies parts of host tensors to the device, through one staging slot. */
  | { readonly type: 'fetch'; readonly parts: readonly HostCopy[]; readonly staging: Range }
  /** Copies parts of device tensors to the host, through one staging slot. */
  | { readonly type: 'store'; readonly parts: readonly HostCopy[]; readonly staging: Range }
  /** Copies parts of device tensors to the one buffer in which the host has them. What is kept is always cut alike. */
  | { readonly type: 'keep'; readonly parts: readonly HostCopy[] }
  /** The host reads the control tensor and exchanges the losses: the end of the step. */
  | { readonly type: 'report'; readonly control: Range; readonly staging: Range; readonly region: number }
  /** Nothing runs: the tensors' ranges may be used again. */
  | { readonly type: 'free' };

export interface Step {
  readonly id: number;
  readonly kind: StepKind;
  readonly lane: Lane;
  readonly phase: StepPhase;
  /** What a person reads: the kernel, or the collective and its unit. */
  readonly label: string;
  /** Name of the unit (or bucket) that it serves. */
  readonly unit: string;
  /** Compute steps of one visit go to the device in one submit (joined-visits.ts). Steps of other lanes have a visit each. */
  readonly visit: number;
  readonly action: Action;
  /** Ids of tensors. A tensor created is written by this step; what is freed may be overwritten once the step is done. */
  readonly reads: readonly number[];
  readonly writes: readonly number[];
  readonly creates: readonly number[];
  readonly frees: readonly number[];
  /** Ids of earlier steps of other lanes that must be done (submitted, and read by the host where it reads) before this. */
  readonly waits: readonly number[];
}

/** A mailbox region that the schedule uses; see comm/mailbox.ts. */
export interface Region {
  readonly name: string;
  readonly bytes: number;
  readonly readsPerPublication: number;
  readonly groups?: readonly (readonly number[])[];
}

export interface Schedule {
  readonly rank: number;
  readonly world: number;
  readonly tensors: readonly Tensor[];
  readonly steps: readonly Step[];
  readonly regions: readonly Region[];
}

/** Every range that a step touches, with how. A partial write is a read as well: the rest stays. */
export function touches(action: Action): readonly { range: Range; access: Access }[] {
  switch (action.type) {
    case 'dispatch':
      return dispatchTouches(action.dispatch);
    case 'feed':
      return [
        ...[...action.inputs, ...action.targets].map((range) => ({ range, access: 'write' as const })),
        { range: action.control, access: 'read_write' },
      ];
    case 'publish':
      return [
        ...(action.pack ? dispatchTouches(action.pack) : []),
        { range: action.source, access: 'read' },
        { range: action.staging, access: 'write' },
      ];
    case 'collect':
      return [
        ...(action.own ? [{ range: action.own.part, access: 'read' as const }] : []),
        { range: action.staging, access: 'write' },
        { range: action.received, access: 'write' },
        ...action.place.flatMap(dispatchTouches),
      ];
    case 'report':
      return [
        { range: action.control, access: 'read' },
        { range: action.staging, access: 'write' },
      ];
    case 'fetch':
      return [
        { range: action.staging, access: 'write' },
        ...action.parts.flatMap(({ host, device }) => [
          { range: host, access: 'read' as const },
          { range: device, access: 'write' as const },
        ]),
      ];
    case 'store':
      return [{ range: action.staging, access: 'write' }, ...action.parts.flatMap(downloadTouches)];
    case 'keep':
      return action.parts.flatMap(downloadTouches);
    case 'announce':
    case 'free':
      return [];
  }
}

function downloadTouches({ host, device }: HostCopy): readonly { range: Range; access: Access }[] {
  return [
    { range: device, access: 'read' },
    { range: host, access: 'write' },
  ];
}

function dispatchTouches(dispatch: Dispatch): { range: Range; access: Access }[] {
  return dispatch.operands.map((range, i) => ({ range, access: dispatch.kernel.operands[i].access }));
}

/** Steps of the compute lane, as they are submitted together. */
export function computeVisits(steps: readonly Step[]): Step[][] {
  const visits: Step[][] = [];
  for (const step of steps) {
    if (step.lane !== 'compute') continue;
    const last = visits.at(-1);
    if (last?.[0].visit === step.visit) last.push(step);
    else visits.push([step]);
  }
  return visits;
}

/** The dispatches of a step, in order. */
export function dispatches(action: Action): readonly Dispatch[] {
  if (action.type === 'dispatch') return [action.dispatch];
  if (action.type === 'publish') return action.pack ? [action.pack] : [];
  return action.type === 'collect' ? action.place : [];
}
