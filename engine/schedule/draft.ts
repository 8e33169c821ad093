import { StudioError } from '../errors.ts';
import { type Kernel, type Params, runsAs, variantClass } from '../ops/kernel.ts';
import type { RankGroup } from './mesh.ts';
import type { FloatType } from './precision.ts';
import type { AdapterProfile } from './profile.ts';
import type { Action, Category, Dispatch, Lane, Range, Region, StepKind, StepPhase, Tensor } from './schedule.ts';

/** A step before the lifetime and wait passes. */
export interface DraftStep {
  readonly kind: StepKind;
  readonly lane: Lane;
  readonly phase: StepPhase;
  readonly label: string;
  readonly unit: string;
  readonly visit: number;
  readonly action: Action;
  /** For `free`: the tensors that end here. */
  readonly releases: readonly number[];
  /** Steps that must be done before this one beyond what the data demands (limiter, on-demand gathers). */
  readonly after: readonly number[];
}

/**
 * Staging slots a direction: one fills, one is copied by the device, and one waits for a peer meanwhile. On two
 * H200 two are slower where units stay gathered, and five or eight everywhere.
 */
const STAGING_SLOTS = 3;

/** The growing schedule of one rank: tensors, steps in listed order, mailbox regions. */
export class Draft {
  readonly tensors: Tensor[] = [];
  readonly steps: DraftStep[] = [];
  readonly regions: Region[];
  /** How often each ring of regions has been used; see collectives.ts. */
  readonly ringUses = new Map<string, number>();
  /** Sums of all-reduces that are still to go back to the ranks, in order; see collectives.ts. */
  readonly sumsToGiveBack: (() => void)[] = [];
  private visitCount = 0;
  private readonly staging = new Map<string, { tensor: Tensor & { bytes: number }; uses: number }[]>();

  constructor(
    readonly rank: number,
    readonly world: number,
    readonly profile: AdapterProfile,
    /** The regions of a program that this one shares its state with, and so its mailboxes. */
    private readonly knownRegions: readonly Region[] = [],
  ) {
    this.regions = [...knownRegions];
  }

  /** A device tensor that lives from its first to its last use in a step. */
  tensor(name: string, bytes: number, category: Category): Tensor {
    return this.add({ name, bytes, category, space: 'device', state: false });
  }

  /** A device tensor filled once, before step 0. */
  constant(name: string, bytes: number, contents: NonNullable<Tensor['contents']>): Tensor {
    return this.add({ name, bytes, category: 'workspace', space: 'device', state: true, contents });
  }

  /** A device tensor that is kept from step to step, of floats stored as `type`. */
  state(name: string, bytes: number, category: Category, type: FloatType = 'f32'): Tensor {
    return this.add({ name, bytes, category, space: 'device', state: true, ...storedAs(type) });
  }

  /**
   * A tensor on the host that is kept from step to step: in the mailbox region in which peers read it, in buffers that the
   * host maps where whole steps keep it, or in memory of its own.
   */
  host(
    name: string,
    bytes: number,
    category: Category,
    type: FloatType,
    where: Pick<Tensor, 'region' | 'mapped'> = {},
  ): Tensor {
    return this.add({ name, bytes, category, space: 'host', state: true, ...where, ...storedAs(type) });
  }

  /** A range of the next staging slot of that direction; the slots take turns. */
  stagingSlot(space: 'upload' | 'download', purpose: string, bytes: number, slots = STAGING_SLOTS): Range {
    const key = `${space} ${purpose}`;
    let ring = this.staging.get(key);
    if (!ring) {
      ring = Array.from({ length: slots }, (_, i) => ({
        tensor: this.add({
          name: `staging.${purpose}.${space}.${i}`,
          bytes: 0,
          category: 'staging',
          space,
          state: false,
        }),
        uses: 0,
      }));
      this.staging.set(key, ring);
    }
    const slot = ring.reduce((least, s) => (s.uses < least.uses ? s : least));
    slot.uses++;
    slot.tensor.bytes = Math.max(slot.tensor.bytes, bytes);
    return { tensor: slot.tensor.id, offsetBytes: 0, bytes };
  }

  /** A mailbox region; `group`: the ranks that read each other in it, all if left out. */
  region(name: string, bytes: number, readsPerPublication: number, group?: RankGroup): number {
    const known = this.knownRegions.findIndex((r) => r.name === name);
    if (known >= 0) return known;
    const groups = group && group.partition.length > 1 ? { groups: group.partition } : {};
    return this.regions.push({ name, bytes, readsPerPublication, ...groups }) - 1;
  }

  /** Starts a new visit: steps that the compute lane submits together. */
  nextVisit(): number {
    return this.visitCount++;
  }

  dispatch(kernel: Kernel, operands: readonly Range[], params: Params): Dispatch {
    const { software, variants } = this.profile;
    const usual = runsAs(kernel, params, software);
    const shape = usual.tiled && !software ? variantClass(kernel, params) : null;
    const variant = shape === null ? undefined : variants?.[shape];
    return { kernel, operands, params, ...usual, ...(variant !== undefined && { variant }) };
  }

  /** Lists a step; returns its id. */
  list(step: Omit<DraftStep, 'releases' | 'after'> & Partial<Pick<DraftStep, 'releases' | 'after'>>): number {
    return this.steps.push({ releases: [], after: [], ...step }) - 1;
  }

  /** All of a tensor. */
  whole(tensor: Tensor): Range {
    return { tensor: tensor.id, offsetBytes: 0, bytes: tensor.bytes };
  }

  /**
   * What a step may take beyond its fullest so that copies do not hand ranges on to each other: as much as the slots of one
   * direction. Null for a rank without peers.
   */
  spareBytes(): number | null {
    if (this.world === 1) return null;
    return this.tensors.reduce((sum, { space, bytes }) => sum + (space === 'upload' ? bytes : 0), 0);
  }

  /** Bytes to which a range is aligned so that a kernel can bind it. */
  alignBytes(): number {
    const bytes = Math.max(16, this.profile.offsetAlignmentBytes);
    if (bytes % 4) throw new StudioError('internal', `an offset alignment of ${bytes} bytes is not whole elements`);
    return bytes;
  }

  private add<T extends Omit<Tensor, 'id'>>(tensor: T): T & { id: number; bytes: number } {
    const made = { ...tensor, id: this.tensors.length };
    this.tensors.push(made);
    return made;
  }
}

function storedAs(type: FloatType): Pick<Tensor, 'halves'> {
  return type === 'f16' ? { halves: true } : {};
}
