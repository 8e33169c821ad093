import { describe, expect, it } from 'vitest';
import { demoTransformer } from '../model/demo-transformer.ts';
import { gpt2 } from '../model/gpt2.ts';
import { type NextLogits, type SampleSettings, sampleTokens } from './sample.ts';

const model = gpt2({ vocabSize: 4, nLayer: 1, nHead: 1, nEmbd: 2, nPositions: 1000, tieWeights: true, dropout: 0 });
const always =
  (...logits: number[]): NextLogits =>
  async () =>
    Float32Array.from(logits);

async function sample(next: NextLogits, settings: SampleSettings, prompt = [0], by = model): Promise<number[]> {
  const tokens: number[] = [];
  for await (const token of sampleTokens(by, next, prompt, settings)) tokens.push(token);
  return tokens;
}

describe('greedy', () => {
  it('takes the likeliest token, the lowest of equal ones, and reads what it wrote', async () => {
    const seen: number[][] = [];
    const next: NextLogits = async (tokens) => {
      seen.push([...tokens]);
      return Float32Array.from([0, 5, 5, tokens.length]);
    };
    expect(await sample(next, { count: 4 }, [2, 0, 0, 0])).toEqual([1, 1, 3, 3]);
    expect(seen.at(-1)).toEqual([2, 0, 0, 0, 1, 1, 3]);
  });

  it('is what topK 1 draws at any temperature', async () => {
    expect(await sample(always(1, 2, 4, 3), { count: 3, temperature: 9, topK: 1, seed: 5 })).toEqual([2, 2, 2]);
  });
});

describe('drawn', () => {
  const logits = [Math.log(0.1), Math.log(0.2), Math.log(0.3), Math.log(0.4)];
  const shares = async (settings: Omit<SampleSettings, 'count'>) => {
    const tokens = await sample(always(...logits), { count: 900, ...settings });
    return [0, 1, 2, 3].map((token) => tokens.filter((t) => t === token).length / tokens.length);
  };
  const expectNear = (found: number[], wanted: number[]) =>
    found.forEach((share, i) => {
      expect(Math.abs(share - wanted[i])).toBeLessThan(0.05);
    });

  it('follows softmax(logits / temperature)', async () => {
    expectNear(await shares({ temperature: 1, seed: 3 }), [0.1, 0.2, 0.3, 0.4]);
    const squares = [1 / 30, 4 / 30, 9 / 30, 16 / 30];
    expectNear(await shares({ temperature: 0.5, seed: 3 }), squares);
  });

  it('keeps to the topK likeliest', async () => {
    expectNear(await shares({ temperature: 1, topK: 2, seed: 3 }), [0, 0, 3 / 7, 4 / 7]);
  });

  it('draws the same tokens of the same seed, however many are asked for, and others of another', async () => {
    const drawn = (count: number, seed: number) => sample(always(0, 0, 0, 0), { count, temperature: 1, seed });
    const long = await drawn(40, 1);
    expect(await drawn(25, 1)).toEqual(long.slice(0, 25));
    expect(await drawn(40, 2)).not.toEqual(long);
  });
});

describe('refused', () => {
  const demo = demoTransformer({ vocabSize: 4, ninp: 2, nhead: 1, nhid: 2, nlayers: 1, dropout: 0 });
  const cases: [string, () => Promise<number[]>, RegExp][] = [
    ['an empty prompt', () => sample(always(0, 0, 0, 0), { count: 1 }, []), /prompt is empty/],
    ['a strange token', () => sample(always(0, 0, 0, 0), { count: 1 }, [1, 4]), /token 4; the model's are 0 to 3/],
    ['half a token', () => sample(always(0, 0, 0, 0), { count: 0.5 }), /count is 0.5/],
    ['a negative temperature', () => sample(always(0, 0, 0, 0), { count: 1, temperature: -1 }), /temperature is -1/],
    ['topK 0', () => sample(always(0, 0, 0, 0), { count: 1, topK: 0 }), /topK is 0/],
    [
      'more than the positions',
      () => sample(always(0, 0, 0, 0), { count: 1001 }),
      /need 1001 positions, the model has 1000/,
    ],
    ['logits that are NaN', () => sample(always(0, Number.NaN, 0, 0), { count: 1 }), /not finite/],
    ['the demo Transformer', () => sample(always(0, 0, 0, 0), { count: 1 }, [0], demo), /cannot continue a text/],
  ];
  it.each(cases)('%s', async (_, run, message) => {
    await expect(run()).rejects.toThrow(message);
  });
});
