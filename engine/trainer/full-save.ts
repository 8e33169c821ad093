import type { CheckpointParameter, CheckpointPart, FullCheckpoint } from '../checkpoint/full-checkpoint.ts';
import type { Mailbox } from '../comm/mailbox.ts';
import type { ExperimentConfig } from '../config.ts';
import { type Model, parameterOf } from '../model/model.ts';
import { rowsOf, type ShardSegment } from '../ops/shard/layout.ts';
import type { CompiledRun } from '../schedule/compile.ts';
import type { RankEngine } from '../schedule/rank-engine.ts';
import { optimizerStateNames, type StoredGroup } from '../schedule/storage.ts';

/** Most bytes of a shard that travel to rank 0 at once. */
export const SAVE_PIECE_BYTES = 4 * 2 ** 20;

/** A rank with what it needs to take part in a save. `region` has SAVE_PIECE_BYTES, read once by each peer. */
export interface SavingRank {
  readonly run: CompiledRun;
  readonly engine: RankEngine;
  readonly mailbox: Mailbox;
  readonly region: number;
  readonly optimizer: ExperimentConfig['optimizer'];
}

/**
 * The whole of one part of a parameter, row after row, on rank 0: its own rows from its device, the peers' through the
 * mailbox a piece at a time. Every rank must go through the same parts in the same order; others than rank 0 get nothing.
 */
export async function* gatherPart(rank: SavingRank, name: string, part: CheckpointPart): AsyncGenerator<Uint8Array> {
  const { run, mailbox, region } = rank;
  const { group, segment } = find(run, name);
  const holders = run.shards.count;
  for (let holder = 0; holder < holders; holder++) {
    // What rank 0 holds goes nowhere.
    if (holder === 0 && mailbox.rank !== 0) continue;
    const bytes = rowsOf(segment, holder).count * segment.rowLength * 4;
    for (let done = 0; done < bytes; done += SAVE_PIECE_BYTES) {
      const size = Math.min(SAVE_PIECE_BYTES, bytes - done);
      if (holder !== mailbox.rank) {
        const piece = await take(mailbox, region, holder, size);
        if (mailbox.rank === 0) yield piece;
        continue;
      }
      const tensor = part === 'param' ? group.parameters : group.state[part];
      const values = await rank.engine.read(tensor.name, segment.shardOffset * 4 + done, size);
      const own = new Uint8Array(values.buffer);
      if (holder === 0) yield own;
      else await give(mailbox, region, own);
    }
  }
}

/** A part of a parameter, as a checkpoint asks for it. */
export interface SavedPart {
  readonly name: string;
  readonly part: CheckpointPart;
}

/** The order in which a full checkpoint asks for parts: all parameters, then the state of each. */
export function* partsInOrder(
  run: CompiledRun,
  optimizer: ExperimentConfig['optimizer'],
  step: number,
): Generator<SavedPart> {
  for (const { name } of run.model.parameters) yield { name, part: 'param' };
  if (step === 0) return;
  for (const { name } of run.model.parameters)
    for (const part of optimizerStateNames(optimizer)) yield { name, part: part as CheckpointPart };
}

/** Goes through the parts without keeping them: what every rank but 0 does, and rank 0 after its disk has failed. */
export async function drainParts(rank: SavingRank, parts: Iterable<SavedPart>): Promise<void> {
  for (const { name, part } of parts) for await (const _ of gatherPart(rank, name, part));
}

/**
 * The description of a full checkpoint whose parts rank 0 gathers as they are written. `iter` is the number of steps done;
 * `onPart` is given the pieces of each part as it is begun.
 */
export function fullCheckpointOf(
  rank: SavingRank,
  config: ExperimentConfig,
  iter: number,
  samples: number,
  onPart: (pieces: AsyncGenerator<Uint8Array>) => void,
): FullCheckpoint {
  const { optimizer } = config;
  const shared = { lr: optimizer.lr, weightDecay: optimizer.weightDecay, foreach: optimizer.foreach, step: iter };
  return {
    parameters: namesInStateDict(rank.run.model),
    optimizer:
      optimizer.kind === 'sgd'
        ? { ...shared, kind: 'sgd', momentum: optimizer.momentum, nesterov: optimizer.nesterov }
        : { ...shared, kind: optimizer.kind, betas: optimizer.betas, eps: optimizer.eps },
    iter,
    config,
    extra: { samples },
    read: (name, part) => {
      const pieces = gatherPart(rank, name, part);
      onPart(pieces);
      // Without `return`: a writer that gives up must not end the exchange half way.
      return { [Symbol.asyncIterator]: () => ({ next: () => pieces.next() }) };
    },
  };
}

/** What PyTorch's state_dict lists: the parameters, and tied ones once more under their second name. */
function namesInStateDict(model: Model): CheckpointParameter[] {
  const own = model.parameters.map(({ name, shape }) => ({ name, shape }));
  const tied = (model.tied ?? []).map((t) => ({ ...t, shape: parameterOf(model, t.tiedTo).shape }));
  return [...own, ...tied];
}

function find(run: CompiledRun, name: string): { group: StoredGroup; segment: ShardSegment } {
  for (const group of run.steps[0].groups) {
    const segment = group.layout.segments.find((s) => s.name === name);
    if (segment) return { group, segment };
  }
  throw new Error(`no group holds ${name}`);
}

async function give(mailbox: Mailbox, region: number, bytes: Uint8Array): Promise<void> {
  await mailbox.beginWrite(region);
  mailbox.outbox(region).set(bytes);
  mailbox.publish(region);
}

async function take(mailbox: Mailbox, region: number, peer: number, bytes: number): Promise<Uint8Array> {
  await mailbox.arrived(region, peer);
  // Only rank 0 looks at it; the others just let the owner go on.
  const piece = mailbox.rank === 0 ? mailbox.inbox(region, peer).slice(0, bytes) : new Uint8Array(0);
  mailbox.consumed(region, peer);
  return piece;
}
