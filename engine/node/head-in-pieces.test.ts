import { afterAll, beforeAll, beforeEach, expect, it, vi } from 'vitest';
import { expectAsPlanned, expectSameBits } from './fixtures/laws.ts';
import { interpreterPlace, openRanks, type Place, referenceBatch, softwareGpuPlace } from './fixtures/reference-run.ts';

/** Laws 1 and 2 of a head that makes its logits in pieces: here 16 of 36 rows at a time, the last 4. */

const pieces = vi.hoisted(() => ({ rows: 16 }));
vi.mock('../ops/cross-entropy/head-rows.ts', () => ({ headRows: (R: number) => Math.min(R, pieces.rows) }));
beforeEach(() => {
  pieces.rows = 16;
});

let gpu: Awaited<ReturnType<typeof softwareGpuPlace>>;
beforeAll(async () => {
  gpu = await softwareGpuPlace();
});
afterAll(() => gpu?.device.close());

const demo = { kind: 'demo-transformer', vocabSize: 97, ninp: 12, nhead: 3, nhid: 20, nlayers: 1, dropout: 0.2 };
const gpt2 = { kind: 'gpt2', vocabSize: 97, nEmbd: 12, nHead: 3, nLayer: 1, nPositions: 40, dropout: 0.2 };
const llama = {
  kind: 'llama',
  vocabSize: 97,
  hiddenSize: 12,
  intermediateSize: 20,
  numAttentionHeads: 3,
  numKeyValueHeads: 3,
  numHiddenLayers: 1,
};

async function trained(place: Place, config: object, rows = 16) {
  pieces.rows = rows;
  const ranks = await openRanks(place, { config });
  try {
    const result = { outcomes: await ranks.train(2), parameters: await ranks.parameters() };
    expectAsPlanned(ranks, [0, 1], JSON.stringify(config));
    return { result, run: ranks.runs[0] };
  } finally {
    await ranks.close();
  }
}

const cases = [
  ['the demo', '32-true', demo, 'TransformerDecoderLayer'],
  ['a tied head', '16-mixed', gpt2, 'GPT2Block'],
  ['a head of its own', '16-true', llama, 'LlamaDecoderLayer'],
] as const;

it.each(cases)('%s in %s: strategies change no bit', async (_, precision, model, block) => {
  const config = { devices: 2, model, precision, trainer: { accumulateGradBatches: 2 } };
  const wanted = (await trained(interpreterPlace, { ...config, strategy: 'ddp' })).result;
  for (const strategy of [
    { kind: 'fsdp', autoWrapPolicy: [block], activationCheckpointingPolicy: [block], cpuOffload: true },
    { kind: 'fsdp', autoWrapPolicy: ['Linear'], backwardPrefetch: null },
    { kind: 'fsdp', autoWrapPolicy: ['Linear'], shardingStrategy: 'SHARD_GRAD_OP' },
  ]) {
    const { result } = await trained(interpreterPlace, { ...config, strategy });
    expectSameBits(result, wanted, JSON.stringify(strategy));
  }
});

it.each(cases)('%s in %s: its loss is that of a head at once, and less is held', async (_, precision, model) => {
  // So wide that the logits are most of what lives.
  const config = { devices: 1, strategy: 'ddp', model: { ...model, vocabSize: 1601 }, precision };
  const [inPieces, atOnce] = [await trained(interpreterPlace, config), await trained(interpreterPlace, config, 36)];
  const first = ({ result }: typeof atOnce) => result.outcomes[0][0];
  expect(first(inPieces).loss).toBe(first(atOnce).loss);
  expect(first(inPieces).gradNorm / first(atOnce).gradNorm).toBeCloseTo(1, 5);
  const saved = atOnce.run.memory.reservedBytes - inPieces.run.memory.reservedBytes;
  expect(saved).toBeGreaterThan(0.9 * 20 * 4 * 1604);
});

it('on a software GPU too, near the interpreter', async () => {
  const config = { devices: 2, model: demo, strategy: 'fsdp' };
  const [ours, wanted] = [await trained(gpu, config), await trained(interpreterPlace, config)];
  expectSameBits((await trained(gpu, { ...config, strategy: 'ddp' })).result, ours.result, 'DDP');
  ours.result.outcomes.flat().forEach(({ loss, gradNorm }, i) => {
    const other = wanted.result.outcomes.flat()[i];
    expect(loss).toBeCloseTo(other.loss, 4);
    expect(gradNorm).toBeCloseTo(other.gradNorm, 4);
  });
});

it('a head that is frozen, and one that is all that is trained', async () => {
  const config = { devices: 2, model: { ...demo, freeze: ['decoder.*'] } };
  const frozen = (await trained(interpreterPlace, { ...config, strategy: 'ddp' })).result;
  expectSameBits((await trained(interpreterPlace, { ...config, strategy: 'fsdp' })).result, frozen, 'frozen');
  const rest = { ...config, model: { ...demo, freeze: ['transformer.*', 'embedding.*'] } };
  const alone = (await trained(interpreterPlace, { ...rest, strategy: 'ddp' })).result;
  expectSameBits((await trained(interpreterPlace, { ...rest, strategy: 'fsdp' })).result, alone, 'alone');
});

it('a pass over held-out data: the loss of training, no gradient, one piece at a time', async () => {
  const data = { kind: 'moby-dick', blockSize: 12, validationFraction: 0.2 };
  const config = { devices: 1, strategy: 'ddp', data, model: { ...demo, dropout: 0 }, trainer: { validateEvery: 1 } };
  const ranks = await openRanks(interpreterPlace, { config });
  try {
    const [{ steps, evaluation }] = ranks.runs;
    const { input, target } = referenceBatch(0, 0);
    const feed = { inputs: [Uint32Array.from(input)], targets: [Uint32Array.from(target)], stopRequested: () => false };
    const [engine] = ranks.engines;
    const measured = await engine.start({ ...feed, step: 0, shapeIndex: evaluation!, lrFactor: 1 }).outcome;
    const [[{ loss }]] = await ranks.train(1);
    expect(measured.loss).toBe(loss);
    const { program, schedule } = steps[evaluation!];
    const calls = program.visits.flatMap((visit) => visit.calls);
    expect(calls.every(({ phase }) => phase === 'forward')).toBe(true);
    expect(calls.filter(({ kernel }) => kernel.name === 'cross-entropy')).toHaveLength(3);
    expect(schedule.tensors.find(({ name }) => name.startsWith('decoder.logits'))?.bytes).toBe(4 * 16 * 100);
  } finally {
    await ranks.close();
  }
});
