import { seededRandom } from '../engine/ops/kernel-case.ts';

const layers = ['TransformerEncoderLayer', 'TransformerDecoderLayer'];

/** A row of the guide's table: Fabric's name for it, our strategy on so many devices, and what one rank takes a step. */
export interface Row {
  readonly name: string;
  readonly torch: string;
  readonly devices: number;
  readonly strategy: object;
  readonly batch: number;
  readonly tokens: number;
  readonly precision: '32-true' | '16-mixed';
}

/** What either side says of a row. */
export interface Figures {
  readonly ms: readonly number[];
  /** Ours live, torch's allocated, each at its peak. */
  readonly liveMiB: number;
  readonly reservedMiB: number;
}

const offload = { kind: 'fsdp', cpuOffload: true };
const checkpointed = { activationCheckpointingPolicy: layers };
const guide = { batch: 1, tokens: 35, precision: '32-true' } as const;
const long = { torch: 'single', devices: 1, strategy: { kind: 'ddp' }, batch: 8, tokens: 512 } as const;

export const ROWS: readonly Row[] = [
  { ...guide, name: 'single', torch: 'single', devices: 1, strategy: { kind: 'ddp' } },
  { ...guide, name: 'offload-1', torch: 'offload', devices: 1, strategy: offload },
  { ...guide, name: 'offload_ac-1', torch: 'offload_ac', devices: 1, strategy: { ...offload, ...checkpointed } },
  ...[
    { name: 'ddp', strategy: { kind: 'ddp' } },
    { name: 'no_shard', strategy: { kind: 'fsdp', shardingStrategy: 'NO_SHARD' } },
    { name: 'shard_grad_op', strategy: { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP' } },
    { name: 'full_shard', strategy: { kind: 'fsdp' } },
    { name: 'full_shard_ac', strategy: { kind: 'fsdp', ...checkpointed } },
    { name: 'offload', strategy: offload },
    { name: 'offload_ac', strategy: { ...offload, ...checkpointed } },
  ].map((row) => ({ ...guide, ...row, torch: row.name, devices: 2 })),
  { ...long, name: 'single-512', precision: '32-true' },
  { ...long, name: 'single-512-mixed', precision: '16-mixed' },
];

/** Rows by name, in the order of the names. Throws on a name that there is not. */
export function rowsOf(names: readonly string[]): Row[] {
  return names.map((name) => {
    const row = ROWS.find((each) => each.name === name);
    if (!row) throw new Error(`no row ${name}; there are ${ROWS.map((each) => each.name).join(', ')}`);
    return row;
  });
}

/** batches[step][rank] of a row, the same tokens for all rows of its shape. */
export function batchesOf({ batch, tokens, devices }: Row, steps: number, vocabSize: number): unknown {
  const random = seededRandom(12345);
  const rows = () =>
    Array.from({ length: batch }, () => Array.from({ length: tokens }, () => Math.floor(random() * vocabSize)));
  return Array.from({ length: steps }, () =>
    Array.from({ length: devices }, () => ({ input: rows(), target: rows() })),
  );
}
