import { describe, expect, it } from 'vitest';
import type { Mailbox } from '../comm/mailbox.ts';
import { Interpreter } from '../interpret/interpreter.ts';
import { builtInProfiles } from '../schedule/profile.ts';
import { interpreterPlace, openRanks, type Place } from './fixtures/reference-run.ts';

/**
 * What each strategy is, counted where bytes leave a peer's region: those that each rank receives from each peer, by kind
 * of collective, equal a count made here from the shapes alone, and the formulas of the ring collectives where every
 * dimension 0 divides evenly. The rows of the norm, the losses and what ranks tell each other are counted apart.
 */

const KINDS = ['all-gather', 'reduce-scatter', 'all-reduce', 'norm', 'loss', 'control'] as const;
type Kind = (typeof KINDS)[number];
/** Bytes received, by "kind from peer". */
type Received = Map<string, number>;

/** What a region carries, by its name. */
function kindOf(name: string, mesh: readonly [number, number]): Kind {
  if (name.startsWith('shard ')) return 'all-gather';
  if (name.startsWith('norm ')) return 'norm';
  if (name.startsWith('reduce '))
    return name.startsWith(`reduce ${range(mesh[1]).join('-')}`) && mesh[1] > 1 ? 'reduce-scatter' : 'all-reduce';
  if (name.startsWith('reduced ')) return 'all-reduce';
  throw new Error(`a region of no kind: ${name}`);
}

/** The region in which each rank says its loss and then, as another number, what it was told to do. */
const isReport = (mailbox: Mailbox, region: number) => mailbox.regions[region].name === 'report';
const LOSS_BYTES = 4;
/** What no number of a report is made of: a rank writes over as much of it as it says. */
const UNSAID = 0xaa;

const range = (n: number) => Array.from({ length: n }, (_, i) => i);

/** A mailbox that counts the bytes taken from each peer's regions. */
function counting(mailbox: Mailbox, mesh: readonly [number, number], received: Received): Mailbox {
  const counted: Mailbox = Object.create(mailbox);
  const count = (kind: Kind, peer: number, bytes: number) => {
    const key = `${kind} from ${peer}`;
    received.set(key, (received.get(key) ?? 0) + bytes);
  };
  counted.beginWrite = async (region) => {
    await mailbox.beginWrite(region);
    if (isReport(mailbox, region)) mailbox.outbox(region).fill(UNSAID);
  };
  counted.inbox = (region, peer) => {
    const bytes = mailbox.inbox(region, peer);
    if (isReport(mailbox, region)) {
      const said = bytes.findLastIndex((byte) => byte !== UNSAID) + 1;
      count('loss', peer, Math.min(said, LOSS_BYTES));
      count('control', peer, Math.max(0, said - LOSS_BYTES));
      return bytes;
    }
    const view = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.length);
    view.subarray = (from, to) => {
      const part = bytes.subarray(from, to);
      count(kindOf(mailbox.regions[region].name, mesh), peer, part.length);
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

/** Sums of squares of one rank's rows of a unit over n ranks: one for each row of its chunks, aligned to 16 bytes. */
const rowsOf = (unit: number[][], n: number) => padded(sum(unit.map(([rows]) => Math.ceil(rows / n))));

/** What every rank should receive from a peer, by kind, from the shapes alone. */
function expectedFrom(sizes: Sizes, { strategy, mesh, settings, trainer }: Case) {
  const [replicate, shard] = mesh;
  const [root, ...layers] = shapesByUnit(sizes, 2);
  const units = [root, ...layers];
  const microBatches = trainer?.accumulateGradBatches ?? 1;
  const reductions = trainer?.syncEveryMicroBatch ? microBatches : 1;
  const keepsGathered = strategy === 'SHARD_GRAD_OP' || strategy === 'HYBRID_SHARD_ZERO2';
  // What is kept from forward to backward is kept to the next micro-batch too, unless its gradients are reduced before that.
  const passes = keepsGathered ? reductions : microBatches;
  // A unit that is all-reduced travels as it is kept: whole, or this rank's shard of it.
  const pieceOf = (unit: number[][]) => padded(Math.ceil(shardOf(unit, shard) / replicate));
  const gathers = { FULL_SHARD: 2, HYBRID_SHARD: 2, SHARD_GRAD_OP: 1, HYBRID_SHARD_ZERO2: 1, NO_SHARD: 0, ddp: 0 };
  const gathered =
    passes * (shardOf(root, shard) + gathers[strategy] * sum(layers.map((unit) => shardOf(unit, shard))));
  // What a rank sends to be added; the sum of a row goes on in float32, as do sums that are gathered.
  const sent = settings && 'mixedPrecision' in settings ? 2 : 4;
  const reduced = strategy === 'ddp' ? pieceOf(units.flat()) : sum(units.map(pieceOf));
  return {
    withinRow: {
      'all-gather': 4 * gathered,
      'reduce-scatter': reductions * sent * sum(units.map((unit) => shardOf(unit, shard))),
      norm: 4 * sum(units.map((unit) => rowsOf(unit, shard))),
    },
    // Each reduction by itself; what they came to is gathered once.
    betweenRows: { 'all-reduce': (reductions * (shard > 1 ? 4 : sent) + 4) * reduced },
    everywhere: { loss: LOSS_BYTES, control: 4 },
  };
}

type Strategy = 'FULL_SHARD' | 'SHARD_GRAD_OP' | 'HYBRID_SHARD' | 'HYBRID_SHARD_ZERO2' | 'NO_SHARD' | 'ddp';

const even: Sizes = { vocabSize: 32, ninp: 16, nhid: 32 };
const uneven: Sizes = { vocabSize: 11, ninp: 6, nhid: 10 };

interface Case {
  readonly strategy: Strategy;
  readonly mesh: readonly [number, number];
  readonly settings?: object;
  readonly trainer?: { readonly accumulateGradBatches: number; readonly syncEveryMicroBatch: boolean };
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
  { strategy: 'HYBRID_SHARD', mesh: [2, 2], settings: { cpuOffload: true } },
  { strategy: 'NO_SHARD', mesh: [2, 1], settings: { cpuOffload: true } },
];
const accumulating = [false, true].flatMap((syncEveryMicroBatch): Case[] => {
  const trainer = { accumulateGradBatches: 3, syncEveryMicroBatch };
  return [
    { strategy: 'ddp', mesh: [2, 1], trainer },
    { strategy: 'NO_SHARD', mesh: [2, 1], trainer },
    { strategy: 'SHARD_GRAD_OP', mesh: [1, 2], trainer },
    { strategy: 'FULL_SHARD', mesh: [1, 2], trainer },
    { strategy: 'HYBRID_SHARD', mesh: [2, 2], trainer },
  ];
});

const halved = { mixedPrecision: { reduceDtype: 'float16' } };
const asHalves: readonly Case[] = [
  { strategy: 'FULL_SHARD', mesh: [1, 3], settings: halved },
  { strategy: 'SHARD_GRAD_OP', mesh: [1, 2], settings: { ...halved, cpuOffload: true } },
  { strategy: 'HYBRID_SHARD', mesh: [2, 2], settings: halved },
  { strategy: 'NO_SHARD', mesh: [2, 1], settings: halved },
];

function configOf({ strategy, mesh, settings, trainer }: Case, sizes: Sizes): object {
  const model = { kind: 'demo-transformer', nhead: 2, nlayers: 2, ...sizes };
  const devices = mesh[0] * mesh[1];
  if (strategy === 'ddp') return { model, devices, strategy: 'ddp', trainer };
  const deviceMesh = strategy.startsWith('HYBRID') ? mesh : null;
  return { model, devices, strategy: { kind: 'fsdp', shardingStrategy: strategy, deviceMesh, ...settings }, trainer };
}

describe.each([
  ['dimensions that divide evenly', even],
  ['uneven ones', uneven],
] as const)('%s', (_, sizes) => {
  it.each([...cases, ...accumulating, ...asHalves])(
    '$strategy, mesh $mesh $settings $trainer: bytes from each peer, by kind',
    async (c) => {
      const [replicate, shard] = c.mesh;
      const received = await receivedByRank(configOf(c, sizes), c.mesh);
      const { withinRow, betweenRows, everywhere } = expectedFrom(sizes, c);
      received.forEach((counts, rank) => {
        for (const peer of range(replicate * shard).filter((p) => p !== rank)) {
          const isRow = shard > 1 && Math.floor(peer / shard) === Math.floor(rank / shard);
          const isColumn = replicate > 1 && peer % shard === rank % shard;
          const wanted: Partial<Record<Kind, number>> = {
            ...(isRow && withinRow),
            ...(isColumn && betweenRows),
            ...everywhere,
          };
          for (const kind of KINDS)
            expect(counts.get(`${kind} from ${peer}`) ?? 0, `${kind}, ${rank} from ${peer}`).toBe(wanted[kind] ?? 0);
        }
      });
    },
  );
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
      const collectives = [...counts].filter(([key]) => !/^(norm|loss|control) /.test(key));
      expect(sum(collectives.map(([, bytes]) => bytes))).toBe(formula(c.strategy, c.mesh));
    }
  });
});
