import { type BytePairs, createBytePairs } from '../data/byte-pairs.ts';

let loading: Promise<BytePairs> | null = null;

/**
 * GPT-2's tokens. Of gpt-tokenizer only the table is used, which is read at the first call: its encoder refuses
 * "<|endoftext|>" in a text and takes quadratic time for a long word, and its decoder keeps bytes from one call to the
 * next.
 */
export function gpt2Tokens(): Promise<BytePairs> {
  loading ??= import('gpt-tokenizer/bpeRanks/r50k_base').then(({ default: table }) =>
    createBytePairs(table as (string | number[])[]),
  );
  return loading;
}
