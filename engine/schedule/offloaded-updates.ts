import { StudioError } from '../errors.ts';
import { dtypeBytes } from '../ops/kernel.ts';
import { takeShard } from '../ops/shard/take-shard.ts';
import type { Draft } from './draft.ts';
import { listHostCopy } from './offload.ts';
import type { HostCopy, Range, StepPhase, Tensor } from './schedule.ts';
import type { StoredGroup } from './storage.ts';
import { type Elements, listOptimizerKernel, listUpdate, type OptimizerVisit, type UpdateOptions } from './updates.ts';

/** How many windows are fetched ahead of the one that is updated: their bytes travel meanwhile. */
const AHEAD = 2;

export interface OffloadedInput extends UpdateOptions {
  readonly draft: Draft;
  readonly groups: readonly StoredGroup[];
  readonly control: Tensor;
  /** The groups in the order of their updates. */
  readonly order: readonly number[];
  /** Groups whose parameters are taken from where they are gathered, instead of from the host once more. */
  readonly keepsParameters: (group: number) => boolean;
}

/** A part of a group that passes through the device in one go. */
interface Window extends Elements {
  readonly group: number;
  /** What is fetched for it. */
  readonly hosts: readonly Tensor[];
  /** Where what the host keeps is on the device, once it is listed. */
  readonly onDevice: Map<Tensor, Tensor>;
}

/**
 * Updates of what is kept on the host. A group streams through the device in windows, the next ones fetched while one is
 * updated and the ones before are stored, across groups, so that links are kept busy (ZeRO-Offload, Ren et al. 2021, with
 * the update left to the device).
 */
export class OffloadedUpdates {
  private readonly windows: readonly Window[];
  /** Gathered groups of which the parameters of each window are taken when it is updated. */
  private readonly gathered: (Tensor | undefined)[] = [];
  private fetched = 0;
  private updated = 0;

  constructor(private readonly input: OffloadedInput) {
    this.windows = input.order.flatMap((group) => this.windowsOf(group));
  }

  /**
   * To be called before a gathered group is freed for the last time in a step. Says whether the tensor must stay: of a unit
   * this rank's own part is taken aside, a tensor for each window, so that no window waits for another; of the root, for
   * which no gather waits, only where that is less than all of it.
   */
  listKept(index: number, gathered: Tensor, where: OptimizerVisit): boolean {
    const { groups, keepsParameters } = this.input;
    if (!keepsParameters(index)) return false;
    const { group, shards } = groups[index];
    const stays = group.unit === 'root' && shards!.group.ranks.length === 1;
    if (stays) this.gathered[index] = gathered;
    else for (const window of this.windows) if (window.group === index) this.listTake(window, gathered, where);
    return stays;
  }

  /** Lists a group's update. `gradients`: its reduced ones on the device; null where they are fetched from the host. */
  list(index: number, gradients: Tensor | null, phase: StepPhase): void {
    const { draft, groups, control } = this.input;
    const stored = groups[index];
    const unit = stored.group.name;
    if (this.windows[this.updated]?.group !== index)
      throw new StudioError('internal', `the update of ${unit} is not the next to be listed`);
    for (; this.windows[this.updated]?.group === index; this.updated++) {
      this.listFetches(this.updated + AHEAD, phase);
      const window = this.windows[this.updated];
      const where = { visit: draft.nextVisit(), unit, phase };
      const gathered = this.gathered[index];
      if (gathered) this.listTake(window, gathered, where);
      const parameters = this.inWindow(window, stored.parameters);
      const state = Object.values(stored.state).map((host) => this.inWindow(window, host));
      const own = gradients ? this.part(gradients, window) : this.inWindow(window, stored.hostGradients!);
      listUpdate(draft, this.input, stored, window, [parameters, ...state, own, draft.whole(control)], where);
      const kept = [stored.parameters, ...Object.values(stored.state)];
      const parts = [parameters, ...state].map((device, i): HostCopy => ({ device, host: this.part(kept[i], window) }));
      listHostCopy(draft, 'store', unit, phase, parts);
    }
  }

  /** Windows as large as a staging slot allows and as equal as can be, each where a kernel can bind it. */
  private windowsOf(group: number): Window[] {
    const { draft, groups, keepsParameters } = this.input;
    const { layout, parameters, state, hostGradients } = groups[group];
    const states = Object.values(state);
    const hosts = [
      ...(keepsParameters(group) ? [] : [parameters]),
      ...states,
      ...(hostGradients ? [hostGradients] : []),
    ];
    const travelling = Math.max(hosts.length, states.length + 1);
    const align = draft.alignBytes() / this.size;
    const most = Math.max(align, Math.floor(draft.profile.stagingSlotBytes / this.size / travelling / align) * align);
    const { shardElements } = layout;
    const length = Math.ceil(shardElements / Math.ceil(shardElements / most) / align) * align;
    const windows: Window[] = [];
    for (let begin = 0; begin < shardElements; begin += length)
      windows.push({ group, begin, n: Math.min(length, shardElements - begin), hosts, onDevice: new Map() });
    return windows;
  }

  /** Lists what is still to be fetched of the windows up to this one. */
  private listFetches(last: number, phase: StepPhase): void {
    const { draft, groups } = this.input;
    for (; this.fetched <= last && this.fetched < this.windows.length; this.fetched++) {
      const window = this.windows[this.fetched];
      if (window.hosts.length === 0) continue;
      const parts = window.hosts.map((host): HostCopy => {
        const device = this.deviceTensor(window, host);
        return { host: this.part(host, window), device: draft.whole(device) };
      });
      listHostCopy(draft, 'fetch', groups[window.group].group.name, phase, parts);
    }
  }

  /** Takes a window's parameters from where its group is gathered. */
  private listTake(window: Window, gathered: Tensor, where: OptimizerVisit): void {
    const { draft, groups } = this.input;
    const { table, layout, shards, parameters } = groups[window.group];
    const device = this.deviceTensor(window, parameters);
    const { begin, n } = window;
    const params = { segments: layout.segments.length, begin, count: n, rank: shards!.group.index };
    listOptimizerKernel(draft, where, takeShard, [table, draft.whole(gathered), draft.whole(device)], params);
  }

  private deviceTensor(window: Window, host: Tensor): Tensor {
    const name = `window ${window.begin} ${host.name}`;
    const device = this.input.draft.tensor(name, window.n * this.size, host.category);
    window.onDevice.set(host, device);
    return device;
  }

  private inWindow({ onDevice }: Window, host: Tensor): Range {
    const device = onDevice.get(host);
    if (!device) throw new StudioError('internal', `${host.name} is not on the device`);
    return this.input.draft.whole(device);
  }

  private part(tensor: Tensor, { begin, n }: Elements): Range {
    return { tensor: tensor.id, offsetBytes: begin * this.size, bytes: n * this.size };
  }

  private get size(): number {
    return dtypeBytes[this.input.precision.kept];
  }
}
