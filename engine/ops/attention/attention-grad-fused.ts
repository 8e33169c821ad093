import { dropoutWgsl } from '../dropout/dropout-mask.ts';
import type { Params, TiledVariant } from '../kernel.ts';

/** How a workgroup goes through its head: threads, keys of each, and queries that are treated between two barriers. */
export interface FusedShape {
  readonly threads: number;
  readonly keys: number;
  readonly queries: number;
}

const range = (n: number) => Array.from({ length: n }, (_, i) => i);
const each = (n: number, text: (r: number) => string) => range(n).map(text).join('\n        ');

/** Columns of heads of which a thread holds a key, its value and their gradients in registers. */
const NARROW: readonly number[] = [4, 8, 16];
const LOG2_E = Math.LOG2E;

/** Heads below which many of a large GPU's multiprocessors have none: there queries and keys are better spread apart. */
const MANY_HEADS = 256;

/** Whether a sequence is long, its head narrow and heads are many: what the fused variant is for. */
export function isFused({ B, T, H, HD, groupSize, stride, qOffset, kOffset, vOffset }: Params): boolean {
  const heads = (B * H) / groupSize;
  return (
    NARROW.includes(HD) &&
    [stride, qOffset, kOffset, vOffset].every((n) => n % 4 === 0) &&
    T > 0 &&
    heads >= MANY_HEADS &&
    heads <= 65_535
  );
}

/**
 * All gradients of attention for real GPUs and long sequences, scores computed once. A workgroup has a head of keys and goes
 * through its keys in blocks, a thread for each few, and for each block through the queries: a thread adds to the gradients
 * of its keys and values in registers and leaves the scores' gradients in workgroup memory, from which the block's part of
 * the queries' gradients is summed. Those are added up in dqkv, block after block, each element by the same thread.
 */
export function attentionGradFused({ threads, keys, queries }: FusedShape): TiledVariant {
  const block = threads * keys;
  /** Of `queries` x HD results of a block each thread has four queries by four columns, over one slice of the keys. */
  const quads = queries / 4;
  return {
    name: `fused-${threads}x${keys}-${queries}`,
    vectors: ['qkv', 'out', 'dout', 'dqkv'],
    workgroupSize: [threads, 1, 1],
    workgroups: ({ B, H, groupSize }) => [(B * H) / groupSize, 1, 1],
    fits: isFused,
    wgsl: `${dropoutWgsl}
const HD4 = HD / 4u;
const TILES = ${quads}u * HD4;
const SLICES = ${threads}u / TILES;
const PER_SLICE = ${block}u / SLICES;
var<workgroup> staged_k: array<vec4f, ${block}u * HD4>;
var<workgroup> staged_q: array<vec4f, ${queries}u * HD4>;
var<workgroup> staged_dout: array<vec4f, ${queries}u * HD4>;
var<workgroup> staged_row: array<vec2f, ${queries}>;
var<workgroup> ds: array<vec4f, ${block * quads}>;
var<workgroup> parts: array<vec4f, SLICES * ${queries}u * HD4>;
fn add_dot(x: vec4f, y: vec4f, sum: f32) -> f32 { return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum)))); }
/** Where the scores' gradients of four queries and a key lie: threads that run together write to different banks. */
fn ds_at(key: u32, quad: u32) -> u32 { return key * ${quads}u + (quad ^ ((key / ${Math.max(1, 8 / quads)}u) % ${quads}u)); }
/** Queries from \`first\` on, of head h: themselves, their output's gradients, and of each row its lse and Σ dout·out. */
fn stage(b: u32, h: u32, first: u32, index: u32) {
  for (var j = index; j < ${queries}u * HD4; j += ${threads}u) {
    let t = b * p.T + min(first + j / HD4, p.T - 1u);
    staged_q[j] = qkv[(t * p.stride + p.qOffset + h * HD) / 4u + j % HD4];
    staged_dout[j] = dout[(t * p.H + h) * HD4 + j % HD4];
  }
  for (var j = ${threads}u - 1u - index; j < ${queries}u; j += ${threads}u) {
    let t = min(first + j, p.T - 1u);
    var delta = 0.0;
    for (var d = 0u; d < HD4; d++) {
      let at = ((b * p.T + t) * p.H + h) * HD4 + d;
      delta = add_dot(dout[at], out[at], delta);
    }
    // The weights of rows past the last are 0.
    staged_row[j] = vec2f(select(1e30, lse[(b * p.H + h) * p.T + t] * ${LOG2_E}, first + j < p.T), delta);
  }
}
fn tile(group: vec3u, local: vec3u, index: u32) {
  let heads = p.H / groupSize;
  let b = group.x / heads;
  let kv = group.x % heads;
  let scale = 1.0 / sqrt(f32(HD));
  let mask = dropout_mask();
  let part = index % TILES;
  let slice = index / TILES;
  for (var first_key = 0u; first_key < p.T; first_key += ${block}u) {
    for (var j = index; j < ${block}u * HD4; j += ${threads}u) {
      staged_k[j] = qkv[((b * p.T + min(first_key + j / HD4, p.T - 1u)) * p.stride + p.kOffset + kv * HD) / 4u + j % HD4];
    }
    ${each(
      keys,
      (r) => `let own${r} = index + ${r * threads}u;
        let t${r} = first_key + own${r};
        let at${r} = ((b * p.T + min(t${r}, p.T - 1u)) * p.stride + kv * HD) / 4u;
        var k${r}: array<vec4f, HD4>; var v${r}: array<vec4f, HD4>; var dk${r} = array<vec4f, HD4>(); var dv${r} = array<vec4f, HD4>();
        for (var d = 0u; d < HD4; d++) {
          k${r}[d] = qkv[at${r} + p.kOffset / 4u + d] * (scale * ${LOG2_E});
          v${r}[d] = qkv[at${r} + p.vOffset / 4u + d];
        }`,
    )}
    // The first query that may see a key of this block.
    let begin = select(0u, first_key / ${queries}u * ${queries}u, p.causal != 0u);
    for (var member = 0u; member < groupSize; member++) {
      let h = kv * groupSize + member;
      let row0 = (b * p.H + h) * p.T;
      stage(b, h, begin, index);
      workgroupBarrier();
      for (var first = begin; first < p.T; first += ${queries}u) {
        for (var quad = 0u; quad < ${quads}u; quad++) {
          ${each(keys, (r) => `var quad${r} = vec4f();`)}
          ${range(4)
            .map(
              (c) => `{
            let j = quad * 4u + ${c}u;
            var q: array<vec4f, HD4>;
            var dO: array<vec4f, HD4>;
            ${each(keys, (r) => `var s${r} = 0.0; var dp${r} = 0.0;`)}
            for (var d = 0u; d < HD4; d++) {
              q[d] = staged_q[j * HD4 + d];
              dO[d] = staged_dout[j * HD4 + d];
              ${each(keys, (r) => `s${r} = add_dot(k${r}[d], q[d], s${r}); dp${r} = add_dot(v${r}[d], dO[d], dp${r});`)}
            }
            let row = staged_row[j];
            ${each(
              keys,
              (
                r,
              ) => `var weight${r} = select(0.0, exp2(s${r} - row.x), t${r} < p.T && (p.causal == 0u || first + j >= t${r}));
            var factor${r} = 1.0;
            if (mask.threshold != 0u) { factor${r} = dropout_factor(mask, (row0 + first + j) * p.T + t${r}); }
            let ds${r} = weight${r} * (dp${r} * factor${r} - row.y);
            weight${r} *= factor${r};
            quad${r}[${c}] = ds${r};`,
            )}
            for (var d = 0u; d < HD4; d++) {
              ${each(keys, (r) => `dk${r}[d] = fma(vec4f(ds${r}), q[d], dk${r}[d]); dv${r}[d] = fma(vec4f(weight${r}), dO[d], dv${r}[d]);`)}
            }
          }`,
            )
            .join('\n          ')}
          ${each(keys, (r) => `ds[ds_at(own${r}, quad)] = quad${r};`)}
        }
        workgroupBarrier();
        var dq = array<vec4f, 4>();
        for (var i = 0u; i < PER_SLICE; i++) {
          let key = slice * PER_SLICE + i;
          let four = ds[ds_at(key, part / HD4)];
          let k = staged_k[key * HD4 + part % HD4];
          for (var c = 0u; c < 4u; c++) { dq[c] = fma(vec4f(four[c]), k, dq[c]); }
        }
        for (var c = 0u; c < 4u; c++) { parts[(slice * ${queries}u + part / HD4 * 4u + c) * HD4 + part % HD4] = dq[c]; }
        if (first + ${queries}u < p.T) { stage(b, h, first + ${queries}u, index); }
        workgroupBarrier();
        for (var j = index; j < ${queries}u * HD4; j += ${threads}u) {
          let t = first + j / HD4;
          if (t < p.T) {
            let at = ((b * p.T + t) * p.stride + p.qOffset + h * HD) / 4u + j % HD4;
            var sum = vec4f();
            for (var s = 0u; s < SLICES; s++) { sum += parts[s * ${queries}u * HD4 + j]; }
            sum *= scale;
            if (first_key != 0u) { sum += dqkv[at]; }
            dqkv[at] = sum;
          }
        }
      }
      workgroupBarrier();
    }
    ${each(
      keys,
      (r) => `if (t${r} < p.T) {
        for (var d = 0u; d < HD4; d++) {
          dqkv[at${r} + p.kOffset / 4u + d] = dk${r}[d] * scale;
          dqkv[at${r} + p.vOffset / 4u + d] = dv${r}[d];
        }
      }`,
    )}
  }
}`,
  };
}
