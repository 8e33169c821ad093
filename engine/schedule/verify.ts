import { StudioError } from '../errors.ts';
import { type Action, type Lane, type Schedule, touches } from './schedule.ts';

/**
 * Checks a schedule for itself, knowing nothing of how it was made. Throws StudioError `invalid-schedule` that names the
 * step and the tensor: read before definition, use after free, created twice, never freed, a wait for a later step, lanes
 * that wait for each other, a use that no wait orders after the write, ranks whose collectives differ, a
 * publication that others collect than those whom its owner waits for, or that is collected after it is overwritten.
 */
export function verify(schedule: Schedule): void {
  verifyLives(schedule);
  verifyWaits(schedule);
  verifyOrder(schedule);
  verifyReaders(schedule);
  verifyOverwritten(schedule);
}

function refuse(message: string): never {
  throw new StudioError('invalid-schedule', message);
}

function verifyLives({ tensors, steps }: Schedule): void {
  const live = new Set(tensors.filter((t) => t.state).map((t) => t.id));
  const freed = new Set<number>();
  const name = (id: number) => tensors[id]?.name ?? `tensor ${id}`;
  for (const step of steps) {
    const at = `step ${step.id} (${step.label})`;
    for (const id of step.creates) {
      if (live.has(id) || freed.has(id)) refuse(`${at} creates ${name(id)}, which exists already`);
      live.add(id);
    }
    const touched = touches(step.action);
    for (const { range, access } of touched) {
      const id = range.tensor;
      if (freed.has(id)) refuse(`${at} uses ${name(id)} after it was freed`);
      if (!live.has(id)) refuse(`${at} uses ${name(id)} before any step creates it`);
      if (range.offsetBytes < 0 || range.offsetBytes + range.bytes > tensors[id].bytes)
        refuse(`${at} reaches past the end of ${name(id)}`);
      const declared = access === 'read' ? [...step.reads, ...step.writes] : step.writes;
      if (!declared.includes(id)) refuse(`${at} touches ${name(id)} and does not say so`);
      if (
        access === 'read' &&
        step.creates.includes(id) &&
        !touched.some((t) => t.range.tensor === id && t.access !== 'read')
      )
        refuse(`${at} reads ${name(id)} before anything wrote it`);
    }
    for (const id of step.frees) {
      if (!live.has(id)) refuse(`${at} frees ${name(id)}, which is not there`);
      if (tensors[id].state) refuse(`${at} frees ${name(id)}, which is kept from step to step`);
      live.delete(id);
      freed.add(id);
    }
  }
  for (const id of live) if (!tensors[id].state) refuse(`${name(id)} is created and never freed`);
}

/** Whether each lane can always go on: no wait for a later step, none for the own visit's middle. */
function verifyWaits({ steps }: Schedule): void {
  const firstOfVisit = new Map<number, number>();
  for (const step of steps) if (!firstOfVisit.has(step.visit)) firstOfVisit.set(step.visit, step.id);
  for (const step of steps)
    for (const wait of step.waits) {
      if (!(wait in steps)) refuse(`step ${step.id} (${step.label}) waits for step ${wait}, which does not exist`);
      if (wait >= step.id) refuse(`step ${step.id} (${step.label}) waits for step ${wait}, which comes later: a cycle`);
      // A visit is submitted whole, so what it waits for must not wait for a part of it.
      if (wait >= firstOfVisit.get(step.visit)! && steps[wait].lane !== step.lane)
        refuse(
          `step ${step.id} (${step.label}) waits inside its own visit for step ${wait} (${steps[wait].label}): a cycle`,
        );
    }
}

/** Whether waits and lane order put every use after the write that it needs, and every write after the uses before. */
function verifyOrder({ tensors, steps }: Schedule): void {
  const done: Record<Lane, number>[] = [];
  const lastOfLane: Partial<Record<Lane, number>> = {};
  const uses = new Map<number, { step: number; write: boolean }[]>();
  for (const step of steps) {
    const before = lastOfLane[step.lane];
    const clock = before === undefined ? { compute: -1, comm: -1, host: -1 } : { ...done[before] };
    for (const wait of step.waits)
      for (const lane of ['compute', 'comm', 'host'] as const) clock[lane] = Math.max(clock[lane], done[wait][lane]);
    for (const { range, access } of touches(step.action)) {
      const write = access !== 'read';
      for (const use of uses.get(range.tensor) ?? [])
        if ((write || use.write) && use.step !== step.id && clock[steps[use.step].lane] < use.step)
          refuse(
            `step ${step.id} (${step.label}) does not wait for step ${use.step} (${steps[use.step].label}), ` +
              `which ${use.write ? 'writes' : 'reads'} ${tensors[range.tensor].name}`,
          );
    }
    for (const { range, access } of touches(step.action)) {
      const list = uses.get(range.tensor) ?? [];
      if (access !== 'read') list.length = 0;
      list.push({ step: step.id, write: access !== 'read' });
      uses.set(range.tensor, list);
    }
    clock[step.lane] = step.id;
    done[step.id] = clock;
    lastOfLane[step.lane] = step.id;
  }
}

/** Whether those who collect a publication are those whose reads its owner waits for before it overwrites it. */
function verifyReaders({ rank, world, steps, regions }: Schedule): void {
  for (const { id, label, action } of steps) {
    if (action.type !== 'collect' || isAlone(action)) continue;
    const { name, groups } = regions[action.region];
    const everybody = Array.from({ length: world }, (_, r) => r);
    const readers = (groups?.find((ranks) => ranks.includes(rank)) ?? everybody).filter((r) => r !== rank);
    if (readers.join() !== action.peers.join())
      refuse(`step ${id} (${label}) collects ${name} of ranks ${action.peers}, and its readers are ranks ${readers}`);
  }
}

/**
 * Whether what peers read on the host is whole until all have read it. Steps are listed alike on all ranks. So if this rank
 * collects a region as often as its owners wait for, and never after a store to its own, no rank's store waits for a read
 * that its reader lists later: what it waits for is listed before, on every rank, and nothing reads what it has written.
 */
function verifyOverwritten({ tensors, steps, regions }: Schedule): void {
  const reads = new Map<number, number>();
  const overwritten = new Set<number>();
  for (const { id, label, action } of steps) {
    if (action.type === 'announce') reads.set(action.region, 0);
    if (action.type === 'collect' && reads.has(action.region)) {
      const { name } = regions[action.region];
      if (overwritten.has(action.region)) refuse(`step ${id} (${label}) collects ${name} after a store to it`);
      reads.set(action.region, reads.get(action.region)! + 1 + action.extraReads);
    }
    if (action.type !== 'store') continue;
    for (const { host } of action.parts) {
      const { region } = tensors[host.tensor];
      if (region !== undefined) overwritten.add(region);
    }
  }
  for (const [region, times] of reads) {
    const { name, readsPerPublication } = regions[region];
    if (times !== readsPerPublication)
      refuse(`${name} is collected ${times} times, and its owners wait for ${readsPerPublication}`);
  }
}

/**
 * What ranks must agree on: every publication and collection in order, with names, kinds and sizes. Equal strings on all
 * ranks mean that each collective meets its own; ranks compare a hash of it in step 0.
 */
export function collectiveOrder({ world, steps, regions }: Schedule): string {
  const lines = steps.flatMap(({ action, label }) => {
    if (action.type !== 'publish' && action.type !== 'collect' && action.type !== 'report') return [];
    if (action.type === 'collect' && isAlone(action)) return [];
    const { name, bytes, readsPerPublication } = regions[action.region];
    return [`${action.type} ${label} ${name} ${bytes} read ${readsPerPublication}`];
  });
  return [`world ${world}`, ...lines].join('\n');
}

/** Whether what is collected is this rank's own alone, from host memory that is no region. */
function isAlone({ peers }: Extract<Action, { type: 'collect' }>): boolean {
  return peers.length === 0;
}
