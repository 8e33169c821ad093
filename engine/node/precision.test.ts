import { describe, expect, it } from 'vitest';
import { smallModel } from '../schedule/fixtures/small-runs.ts';
import { expectAsPlanned, expectSameBits, type Trained } from './fixtures/laws.ts';
import { interpreterPlace, openRanks, type Place, type RanksInput } from './fixtures/reference-run.ts';

/** 16-mixed and 16-true: the laws hold within each, and 16-mixed trains as float32 does. */

async function train(place: Place, input: RanksInput, steps = 3): Promise<Trained> {
  const ranks = await openRanks(place, input);
  try {
    const outcomes = await ranks.train(steps);
    expectAsPlanned(ranks, [steps - 1]);
    return { outcomes, parameters: await ranks.parameters() };
  } finally {
    await ranks.close();
  }
}

const model = { ...smallModel, vocabSize: 97, dropout: 0.3 };
const blocks = ['TransformerEncoderLayer', 'TransformerDecoderLayer'];
const strategies: readonly object[] = [
  { kind: 'ddp', bucketCapMiB: 1e-3 },
  { kind: 'fsdp', shardingStrategy: 'NO_SHARD' },
  { kind: 'fsdp', shardingStrategy: 'SHARD_GRAD_OP' },
  { kind: 'fsdp' },
  { kind: 'fsdp', limitAllGathers: false, autoWrapPolicy: ['Linear'] },
  { kind: 'fsdp', autoWrapPolicy: null },
  { kind: 'fsdp', activationCheckpointingPolicy: blocks },
  { kind: 'fsdp', cpuOffload: true },
  { kind: 'fsdp', shardingStrategy: 'NO_SHARD', cpuOffload: true },
];

describe.each(['16-mixed', '16-true'])('%s', (precision) => {
  it.each([1, 2, 3])('%i ranks: every strategy to the same bits, in the memory that was planned', async (devices) => {
    const optimizer = precision === '16-true' ? { kind: 'adam', eps: 1e-4 } : { kind: 'adam' };
    const config = { devices, model, optimizer, precision };
    const wanted = await train(interpreterPlace, { config: { ...config, strategy: 'ddp' } });
    expect(wanted.outcomes.flat().every((o) => Number.isFinite(o.loss) && !o.halted)).toBe(true);
    for (const strategy of strategies)
      expectSameBits(
        await train(interpreterPlace, { config: { ...config, strategy } }),
        wanted,
        JSON.stringify(strategy),
      );
  });
});
