import type { Graph, Value } from '../graph.ts';
import { rotary } from './rotary.ts';

export interface RotaryShape {
  readonly tokens: number;
  /** Heads that turn: those of the queries and of the keys, which come first in a row. */
  readonly heads: number;
  readonly headDim: number;
}

/**
 * Turns the first heads of each row of x [B·T, stride] in place by the angles of the row's position; `table` is that of
 * `rotaryTable`. Only x's own value may have been written so far, not read; its gradient turns back, in place too.
 */
export function rotate(g: Graph, x: Value, table: Value, { tokens, heads, headDim }: RotaryShape): void {
  const [R, stride] = x.shape;
  const params = { R, T: tokens, H: heads, HD: headDim, stride };
  g.emit(rotary, [x, table], { ...params, back: 0 });
  g.gradientRule(x, () => g.emit(rotary, [g.gradientOf(x), table], { ...params, back: 1 }));
}

/**
 * Cosine and sine of position·theta^(−2j/headDim), [tokens, headDim/2, 2], with the roundings to float32 of Hugging Face's
 * LlamaRotaryEmbedding. headDim is even.
 */
export function rotaryTable(tokens: number, headDim: number, theta: number): Float32Array<ArrayBuffer> {
  const half = headDim / 2;
  const table = new Float32Array(tokens * headDim);
  for (let j = 0; j < half; j++) {
    const frequency = Math.fround(1 / Math.fround(theta ** Math.fround((2 * j) / headDim)));
    for (let position = 0; position < tokens; position++) {
      const angle = Math.fround(position * frequency);
      table[2 * (position * half + j)] = Math.cos(angle);
      table[2 * (position * half + j) + 1] = Math.sin(angle);
    }
  }
  return table;
}
