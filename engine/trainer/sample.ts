import { StudioError } from '../errors.ts';
import { forwardLogits, type WholeParameters } from '../interpret/forward.ts';
import type { Model } from '../model/model.ts';
import { hashAt } from '../ops/init-values/hash.ts';

/** Gives the logits [vocabSize] of the token after `tokens`. */
export type NextLogits = (tokens: readonly number[]) => Promise<Float32Array<ArrayBuffer>>;

export interface SampleSettings {
  /** Tokens to add. */
  readonly count: number;
  /** 0 takes the likeliest token each time; above, logits are divided by it first. */
  readonly temperature?: number;
  /** Only the so many likeliest tokens are drawn from. */
  readonly topK?: number | null;
  /** Of the random numbers: the same seed draws the same tokens. */
  readonly seed?: number;
}

/** The interpreter as the engine of `sampleTokens`: no GPU, and every token is a whole forward pass. */
export function interpretedLogits(model: Model, parameters: WholeParameters): NextLogits {
  return async (tokens) => {
    const shape = { batch: 1, tokens: tokens.length };
    const logits = await forwardLogits(model, parameters, Uint32Array.from(tokens), shape);
    return logits.slice((tokens.length - 1) * model.vocabSize);
  };
}

/**
 * Continues `prompt` by `count` tokens, giving each as it is drawn; whoever stops asking stops the work. Token n of a seed
 * depends on the seed, n and the logits alone. Throws StudioError `bad-data` for a prompt that is empty or has a token that
 * the model has no word for, `invalid-config` for settings out of range or more tokens than the model has positions,
 * `non-finite` when the model gives no numbers.
 */
export function sampleTokens(
  model: Model,
  nextLogits: NextLogits,
  prompt: readonly number[],
  settings: SampleSettings,
): AsyncGenerator<number, void, void> {
  const whole = { temperature: 0, topK: null, seed: 0, ...settings };
  checkSettings(model, prompt, whole);
  return continuation(nextLogits, prompt, whole);
}

async function* continuation(
  nextLogits: NextLogits,
  prompt: readonly number[],
  { count, temperature, topK, seed }: Required<SampleSettings>,
): AsyncGenerator<number, void, void> {
  const tokens = [...prompt];
  for (let n = 0; n < count; n++) {
    const logits = await nextLogits(tokens);
    if (!logits.every(Number.isFinite))
      throw new StudioError('non-finite', `the model's logits after ${tokens.length} tokens are not finite`);
    const token =
      temperature === 0 ? likeliest(logits) : draw(logits, { temperature, topK, chance: chanceAt(seed, n) });
    tokens.push(token);
    yield token;
  }
}

function checkSettings(
  model: Model,
  prompt: readonly number[],
  { count, temperature, topK }: Required<SampleSettings>,
): void {
  const bad = (message: string) => new StudioError('invalid-config', message);
  if (!(Number.isInteger(count) && count >= 0)) throw bad(`count is ${count}; it is a whole number of tokens`);
  if (!(Number.isFinite(temperature) && temperature >= 0)) throw bad(`temperature is ${temperature}; it is 0 or above`);
  if (topK !== null && !(Number.isInteger(topK) && topK >= 1)) throw bad(`topK is ${topK}; it is 1 or above`);
  if (!model.traceLogits)
    throw bad('this model reads the targets that it should predict, so it cannot continue a text; use gpt2 or llama');
  // The last token drawn is not read any more.
  const read = prompt.length + count - 1;
  if (model.maxTokens !== undefined && read > model.maxTokens)
    throw bad(
      `a prompt of ${prompt.length} and ${count} more tokens need ${read} positions, the model has ${model.maxTokens}: ` +
        'ask for fewer tokens, or shorten the prompt',
    );
  if (prompt.length === 0) throw new StudioError('bad-data', 'the prompt is empty; give at least one token');
  const strange = prompt.find((token) => !(Number.isInteger(token) && token >= 0 && token < model.vocabSize));
  if (strange !== undefined)
    throw new StudioError('bad-data', `the prompt has token ${strange}; the model's are 0 to ${model.vocabSize - 1}`);
}

/** The token of the largest logit, the lowest id of equal ones. */
function likeliest(logits: Float32Array): number {
  let best = 0;
  for (let token = 1; token < logits.length; token++) if (logits[token] > logits[best]) best = token;
  return best;
}

/** The token at `chance` of the distribution softmax(logits / temperature) over the topK likeliest, likeliest first. */
function draw(
  logits: Float32Array,
  { temperature, topK, chance }: { temperature: number; topK: number | null; chance: number },
): number {
  const tokens = Array.from(logits, (_, token) => token)
    .sort((a, b) => logits[b] - logits[a] || a - b)
    .slice(0, topK ?? logits.length);
  const weights = tokens.map((token) => Math.exp((logits[token] - logits[tokens[0]]) / temperature));
  let left = chance * weights.reduce((sum, weight) => sum + weight, 0);
  const found = weights.findIndex((weight) => {
    left -= weight;
    return left < 0;
  });
  // Rounding may leave a crumb past the last one.
  return tokens[found < 0 ? tokens.length - 1 : found];
}

/** A number in [0, 1) for token n: counter-based, so that nothing is kept between tokens. */
function chanceAt(seed: number, n: number): number {
  return hashAt(hashAt(seed, 0), n) / 2 ** 32;
}
