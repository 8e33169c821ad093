import { describe, expect, it } from 'vitest';
import type { Mailbox } from '../comm/mailbox.ts';
import { Interpreter } from '../interpret/interpreter.ts';
import { builtInProfiles } from '../schedule/profile.ts';
import { interpreterPlace, openRanks, type Place } from './fixtures/reference-run.ts';

/**
 * What each strategy is, counted where bytes leave a peer's region: those that each rank receives from each peer, by kind
 * of collective, equal a count made here from the shapes alone, and the formulas of the ring collectives where every
 * dimension 0 divides evenly.
 */

type Kind = 'all-gather' | 'reduce-scatter' | 'all-reduce' | 'norm' | 'control';
/** Bytes received, by "kind from peer". */
type Received = Map<string, number>;

/** What a region carries, by its name. */
function kindOf(name: string, mesh: readonly [number, number]): Kind {
  if (name.startsWith('shard ')) return 'all-gather';
  if (name.startsWith('norm ')) return 'norm';
  if (name.startsWith('reduce '))
    return name.startsWith(`reduce ${range(mesh[1]).join('-')}`) && mesh[1] > 1 ? 'reduce-scatter' : 'all-reduce';
  return name.startsWith('reduced ') ? 'all-reduce' : 'control';
}

const range = (n: number) => Array.from({ length: n }, (_, i) => i);

/** A mailbox that counts the bytes taken from each peer's regions. */
function counting(mailbox: Mailbox, mesh: readonly [number, number], received: Received): Mailbox {
  const counted: Mailbox = Object.create(mailbox);
  counted.inbox = (region, peer) => {
    const bytes = mailbox.inbox(region, peer);
    const view = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.length);
    view.subarray = (from, to) => {
      const part = bytes.subarray(from, to);
      const key = `${kindOf(mailbox.regions[region].name, mesh)} from ${peer}`;
      received.set(key, (received.get(key) ?? 0) + part.length);
      return part;
    };
    return view;
  };
  return counted;
}

/** 16-byte alignment, so that nothing but a travelling chunk's own padding is counted. */
const profile = { ...builtInProfiles.interpreter, offsetAlignmentBytes: 16 };

async function receivedByRank(config: object, mesh: readonly [number, number]): Promise<Received[]> {
  const received: Received[] = range(mesh[0] * mesh[1]).map(() => new Map());
  const place: Place = {
    ...interpreterPlace,
    profile,
    open: async (run, mailbox) => new Interpreter(run, counting(mailbox, mesh, received[run.rank])),
  };
  const ranks = await openRanks(place, { config, shape: { batch: 1, tokens: 4 }, batch });
  await ranks.train(1);
  await ranks.close();
  return received;
}

const batch = () => ({ input: [1, 2, 3, 4], target: [2, 3, 4, 5] });

interface Sizes {
  readonly vocabSize: number;
  readonly ninp: number;
  readonly nhid: number;
}

/** Shapes of the demo Transformer's parameters by unit, from its definition. */
function shapesByUnit({ vocabSize: V, ninp: D, nhid: H }: Sizes, nlayers: number): number[][][] {
  const attention = [[3 * D, D], [3 * D], [D, D], [D]];
  const feedForward = [[H, D], [H], [D, H], [D]];
  const norm = [[D], [D]];
  const root = [[V, D], ...norm, ...norm, [V, D], [V]];
  const encoder = [...attention, ...feedForward, ...norm, ...norm];
  const decoder = [...attention, ...attention, ...feedForward, ...norm, ...norm, ...norm];
  return [root, ...range(nlayers).map(() => encoder), ...range(nlayers).map(() => decoder)];
}

const padded = (elements: number) => Math.ceil(elements / 4) * 4;
const sum = (values: readonly number[]) => values.reduce((a, b) => a + b, 0);
const elements = (shape: readonly number[]) => shape.reduce((a, b) => a * b, 1);

/** Elements of one rank's shard of a unit over n ranks: ceil-sized chunks of rows, each starting on 16 bytes. */
const shardOf = (unit: number[][], n: number) =>
  sum(unit.map(([rows, ...rest]) => padded(Math.ceil(rows / n) * elements(rest))));

/** What every rank should receive from a peer, by kind, from the shapes alone. */
function expectedFrom(sizes: Sizes, strategy: Strategy, [replicate, shard]: readonly [number, number]) {
  const [root, ...layers] = shapesByUnit(sizes, 2);
  const units = [root, ...layers];
  // A unit that is all-reduced travels as it is kept: whole, or this rank's shard of it.
  const pieceOf = (unit: number[][]) => padded(Math.ceil(shardOf(unit, shard) / replicate));
  const gathers = { FULL_SHARD: 2, HYBRID_SHARD: 2, SHARD_GRAD_OP: 1, HYBRID_SHARD_ZERO2: 1, NO_SHARD: 0, ddp: 0 };
  const gathered = shard > 1 ? shardOf(root, shard) + gathers[strategy] * sum(layers.map((u) => shardOf(u, shard))) : 0;
  const reduced = strategy === 'ddp' ? pieceOf(units.flat()) : sum(units.map(pieceOf));
  return {
    withinRow: {
      'all-gather': 4 * gathered,
      'reduce-scatter': shard > 1 ? 4 * sum(units.map((u) => shardOf(u, shard))) : 0,
    },
    betweenRows: { 'all-reduce': replicate > 1 ? 2 * 4 * reduced : 0 },
  };
}

type Strategy = 'FULL_SHARD' | 'SHARD_GRAD_OP' | 'HYBRID_SHARD' | 'HYBRID_SHARD_ZERO2' | 'NO_SHARD' | 'ddp';

const even: Sizes = { vocabSize: 32, ninp: 16, nhid: 32 };
const uneven: Sizes = { vocabSize: 11, ninp: 6, nhid: 10 };

interface Case {
  readonly strategy: Strategy;
  readonly mesh: readonly [number, number];
  readonly settings?: object;
}

const cases: readonly Case[] = [
  ...[2, 3, 4].flatMap((n): Case[] => [
    { strategy: 'ddp', mesh: [n, 1] },
    { strategy: 'NO_SHARD', mesh: [n, 1] },
    { strategy: 'SHARD_GRAD_OP', mesh: [1, n] },
    { strategy: 'FULL_SHARD', mesh: [1, n] },
    { strategy: 'FULL_SHARD', mesh: [1, n], settings: { cpuOffload: true } },
    { strategy: 'SHARD_GRAD_OP', mesh: [1, n], settings: { cpuOffload: true } },
  ]),
  { strategy: 'FULL_SHARD', mesh: [1, 2], settings: { limitAllGathers: false, backwardPrefetch: null } },
  { strategy: 'HYBRID_SHARD', mesh: [2, 2] },
  { strategy: 'HYBRID_SHARD_ZERO2', mesh: [2, 2] },
  { strategy: 'HYBRID_SHARD', mesh: [3, 2] },
  { strategy: 'HYBRID_SHARD', mesh: [2, 3] },
];

function configOf({ strategy, mesh, settings }: Case, sizes: Sizes): object {
  const model = { kind: 'demo-transformer', nhead: 2, nlayers: 2, ...sizes };
  const devices = mesh[0] * mesh[1];
  if (strategy === 'ddp') return { model, devices, strategy: 'ddp' };
  const deviceMesh = strategy.startsWith('HYBRID') ? mesh : null;
  return { model, devices, strategy: { kind: 'fsdp', shardingStrategy: strategy, deviceMesh, ...settings } };
}

describe.each([
  ['dimensions that divide evenly', even],
  ['uneven ones', uneven],
] as const)('%s', (_, sizes) => {
  it.each(cases)('$strategy, mesh $mesh $settings: bytes from each peer', async (c) => {
    const [replicate, shard] = c.mesh;
    const received = await receivedByRank(configOf(c, sizes), c.mesh);
    const { withinRow, betweenRows } = expectedFrom(sizes, c.strategy, c.mesh);
    received.forEach((counts, rank) => {
      const isRow = (peer: number) => Math.floor(peer / shard) === Math.floor(rank / shard);
      for (const peer of range(replicate * shard).filter((p) => p !== rank)) {
        const of = (kind: Kind) => counts.get(`${kind} from ${peer}`) ?? 0;
        const row = isRow(peer) && shard > 1;
        const column = peer % shard === rank % shard && replicate > 1;
        expect(of('all-gather'), `all-gather, ${rank} from ${peer}`).toBe(row ? withinRow['all-gather'] : 0);
        expect(of('reduce-scatter'), `reduce-scatter, ${rank} from ${peer}`).toBe(
          row ? withinRow['reduce-scatter'] : 0,
        );
        expect(of('all-reduce'), `all-reduce, ${rank} from ${peer}`).toBe(column ? betweenRows['all-reduce'] : 0);
        expect(of('norm') > 0, `norm, ${rank} from ${peer}`).toBe(row);
      }
    });
  });
});

describe('the formulas of section 2.2, where every dimension 0 divides evenly', () => {
  const [root, ...layers] = shapesByUnit(even, 2).map((unit) => sum(unit.map(elements)));
  const P = root + sum(layers);
  /** Bytes that a rank receives in a step: parameters and reductions are float32. */
  const formula = (strategy: Strategy, [R, N]: readonly [number, number]) => {
    const share = (N - 1) / N;
    const rows = (2 * (R - 1)) / R;
    switch (strategy) {
      case 'FULL_SHARD':
      case 'HYBRID_SHARD':
        return share * 4 * (3 * P - root) + (rows * 4 * P) / N;
      case 'SHARD_GRAD_OP':
      case 'HYBRID_SHARD_ZERO2':
        return share * 4 * 2 * P + (rows * 4 * P) / N;
      case 'NO_SHARD':
      case 'ddp':
        return rows * 4 * P;
    }
  };
  it.each(cases.filter(({ mesh }) => mesh[0] !== 3 && mesh[1] !== 3))('$strategy, mesh $mesh $settings', async (c) => {
    for (const counts of await receivedByRank(configOf(c, even), c.mesh)) {
      const collectives = [...counts].filter(([key]) => !key.startsWith('norm') && !key.startsWith('control'));
      expect(sum(collectives.map(([, bytes]) => bytes))).toBe(formula(c.strategy, c.mesh));
    }
  });
});
