import { pairMaskWgsl } from '../dropout/pair-mask.ts';
import type { Params, TiledVariant } from '../kernel.ts';

/** How a workgroup shares its rows: threads, rows (queries; keys in attention-grad-kv) of each, and rows staged at once. */
export interface RowsShape {
  readonly threads: number;
  readonly rows: number;
  readonly chunk: number;
  /** Whether it is for dropout, whose masks cost registers and workgroup memory even where nothing is dropped. */
  readonly drops: boolean;
}

const range = (n: number) => Array.from({ length: n }, (_, i) => i);
const each = (n: number, text: (r: number) => string) => range(n).map(text).join('\n      ');

/** The widest head of which a thread holds several rows in registers. */
const WIDEST = 32;

/** Scores are computed for so many keys before the running maximum is looked at. */
const AT_ONCE = 4;
/** By so much (in powers of two) a score may exceed the running maximum before the sums are scaled anew. */
const SLACK = 8;

const LOG2_E = Math.LOG2E;

/**
 * For real GPUs and narrow heads: a thread holds several neighbouring rows in registers, so that a staged row is read from
 * workgroup memory once for all of them; that memory, not the arithmetic, bounds one row a thread. Exponentials are
 * powers of two, with log2(e) in the scale of the scores.
 */
function attentionRows(
  shape: RowsShape,
  vectors: readonly string[],
  wgsl: string,
  heads: (params: Params) => number,
): TiledVariant {
  const { threads, rows, chunk, drops } = shape;
  return {
    name: `rows-${threads}x${rows}-${chunk}${drops ? '-drop' : ''}`,
    vectors,
    workgroupSize: [threads, 1, 1],
    workgroups: (params) => [Math.ceil(params.T / (threads * rows)), params.B * heads(params), 1],
    fits: ({ B, T, H, HD, stride, qOffset, kOffset, vOffset, dropout }) =>
      drops === dropout > 0 &&
      HD <= WIDEST &&
      [HD, stride, qOffset, kOffset, vOffset].every((n) => n % 4 === 0) &&
      B * H * T > 0 &&
      B * H <= 65_535,
    wgsl: `${drops ? pairMaskWgsl : ''}
const HD4 = HD / 4u;
var<workgroup> staged0: array<vec4f, ${chunk}u * HD4>;
var<workgroup> staged1: array<vec4f, ${chunk}u * HD4>;
fn add_dot(x: vec4f, y: vec4f, sum: f32) -> f32 { return fma(x.w, y.w, fma(x.z, y.z, fma(x.y, y.y, fma(x.x, y.x, sum)))); }
${wgsl}`,
  };
}

/** What all three begin with: the batch of this workgroup, one of `heads`, and the rows of this thread (or the last one). */
const place = ({ threads, rows, drops }: RowsShape, heads: string) => `
  let b = group.y / (${heads});
  let rows = b * p.T * p.stride;
  let scale = 1.0 / sqrt(f32(HD));
  let mine = (group.x * ${threads}u + index) * ${rows}u;
  ${each(rows, (r) => `let t${r} = min(mine + ${r}u, p.T - 1u);`)}
  ${drops ? 'let mask = dropout_mask();' : ''}`;

/** Queries of a workgroup are of one head; its keys and values are of the head `kv_head`. All keys that the workgroup needs, and this thread. */
const queries = (shape: RowsShape) => `${place(shape, 'p.H')}
  let h = group.y % p.H;
  let kv_head = rows + h / groupSize * HD;
  let all = select(p.T, min(p.T, (group.x + 1u) * ${shape.threads * shape.rows}u), p.causal != 0u);
  let needed = select(p.T, min(mine + ${shape.rows}u, p.T), p.causal != 0u);`;

/** Stages keys and values of `chunk` rows from `first` on; past the last, that one again; and what the mask has of these keys. */
const stageKeys = ({ threads, chunk, drops }: RowsShape) => `
    workgroupBarrier();
    for (var j = index; j < ${chunk}u * HD4; j += ${threads}u) {
      let at = kv_head + min(first + j / HD4, p.T - 1u) * p.stride + j % HD4 * 4u;
      staged0[j] = qkv[(at + p.kOffset) / 4u];
      staged1[j] = qkv[(at + p.vOffset) / 4u];
    }
    ${
      drops
        ? `if (index < ${chunk / 4}u) {
      let column = group.y * p.T + first + 4u * index;
      columns[index] = vec4u(${range(4)
        .map((c) => `pair_column(mask, column + ${c}u)`)
        .join(', ')});
    }`
        : ''
    }
    workgroupBarrier();
    let upto = min(${chunk}u, max(needed, first) - first);`;

const columns = ({ chunk, drops }: RowsShape) => (drops ? `\nvar<workgroup> columns: array<vec4u, ${chunk / 4}>;` : '');

const queryHeads = ({ H }: Params) => H;

export function attentionForwardRows(shape: RowsShape): TiledVariant {
  const { rows, drops } = shape;
  const keys = range(AT_ONCE);
  return attentionRows(
    shape,
    ['qkv', 'out'],
    `${columns(shape)}
fn tile(group: vec3u, local: vec3u, index: u32) {${queries(shape)}
  ${each(
    rows,
    (r) => `var q${r}: array<vec4f, HD4>; var sums${r}: array<vec4f, HD4>; var most${r} = -1e30; var total${r} = 0.0;
      let i${r} = group.y * p.T + t${r};
      ${drops ? `let row${r} = pair_row(mask, i${r});` : ''}
      for (var d = 0u; d < HD4; d++) { q${r}[d] = qkv[(rows + h * HD + t${r} * p.stride + p.qOffset) / 4u + d] * (scale * ${LOG2_E}); }`,
  )}
  for (var first = 0u; first < all; first += ${shape.chunk}u) {${stageKeys(shape)}
    for (var j = 0u; j < upto; j += ${AT_ONCE}u) {
      ${drops ? 'let column = columns[j / 4u];' : ''}
      ${each(rows, (r) => keys.map((c) => `var s${r}_${c} = 0.0;`).join(' '))}
      for (var d = 0u; d < HD4; d++) {
        ${keys.map((c) => `let k${c} = staged0[(j + ${c}u) * HD4 + d];`).join(' ')}
        ${each(rows, (r) => keys.map((c) => `s${r}_${c} = add_dot(q${r}[d], k${c}, s${r}_${c});`).join(' '))}
      }
      ${each(
        rows,
        (r) => `let seen${r} = select(p.T, t${r} + 1u, p.causal != 0u);
      ${keys.map((c) => `s${r}_${c} = select(-1e30, s${r}_${c}, first + j + ${c}u < seen${r});`).join(' ')}
      let highest${r} = max(max(s${r}_0, s${r}_1), max(s${r}_2, s${r}_3));
      if (highest${r} > most${r} + ${SLACK}.0) {
        let shrink = exp2(most${r} - highest${r});
        total${r} *= shrink;
        for (var d = 0u; d < HD4; d++) { sums${r}[d] *= shrink; }
        most${r} = highest${r};
      }
      ${keys.map((c) => `var w${r}_${c} = exp2(s${r}_${c} - most${r});`).join(' ')}
      total${r} += ${keys.map((c) => `w${r}_${c}`).join(' + ')};
      ${drops ? keys.map((c) => `w${r}_${c} = select(0.0, w${r}_${c}, pair_kept(mask, row${r}, column[${c}]));`).join(' ') : ''}`,
      )}
      for (var d = 0u; d < HD4; d++) {
        ${keys.map((c) => `let v${c} = staged1[(j + ${c}u) * HD4 + d];`).join(' ')}
        ${each(rows, (r) => keys.map((c) => `sums${r}[d] = fma(vec4f(w${r}_${c}), v${c}, sums${r}[d]);`).join(' '))}
      }
    }
  }
  ${each(
    rows,
    (r) => `if (mine + ${r}u < p.T) {
        for (var d = 0u; d < HD4; d++) { out[((b * p.T + t${r}) * p.H * HD + h * HD) / 4u + d] = sums${r}[d] ${drops ? `* (mask.scale / total${r})` : `/ total${r}`}; }
        lse[i${r}] = (most${r} + log2(total${r})) * ${Math.LN2};
      }`,
  )}
}`,
    queryHeads,
  );
}

export function attentionGradQRows(shape: RowsShape): TiledVariant {
  const { rows, drops } = shape;
  return attentionRows(
    shape,
    ['qkv', 'out', 'dout', 'dqkv'],
    `${columns(shape)}
fn tile(group: vec3u, local: vec3u, index: u32) {${queries(shape)}
  ${each(
    rows,
    (
      r,
    ) => `var q${r}: array<vec4f, HD4>; var dO${r}: array<vec4f, HD4>; var sums${r}: array<vec4f, HD4>; var delta${r} = 0.0;
      let i${r} = group.y * p.T + t${r};
      ${drops ? `let row${r} = pair_row(mask, i${r});` : ''}
      let lse${r} = lse[i${r}] * ${LOG2_E};
      for (var d = 0u; d < HD4; d++) {
        let at = ((b * p.T + t${r}) * p.H * HD + h * HD) / 4u + d;
        q${r}[d] = qkv[(rows + h * HD + t${r} * p.stride + p.qOffset) / 4u + d] * (scale * ${LOG2_E});
        dO${r}[d] = dout[at];
        delta${r} = add_dot(dO${r}[d], out[at], delta${r});
      }`,
  )}
  for (var first = 0u; first < all; first += ${shape.chunk}u) {${stageKeys(shape)}
    for (var j = 0u; j < upto; j++) {
      var k: array<vec4f, HD4>;
      ${each(rows, (r) => `var s${r} = 0.0; var dp${r} = 0.0;`)}
      for (var d = 0u; d < HD4; d++) {
        k[d] = staged0[j * HD4 + d];
        let v = staged1[j * HD4 + d];
        ${each(rows, (r) => `s${r} = add_dot(q${r}[d], k[d], s${r}); dp${r} = add_dot(dO${r}[d], v, dp${r});`)}
      }
      ${drops ? `let column = columns[j / 4u][j % 4u]; ${each(rows, (r) => `dp${r} = select(0.0, dp${r} * mask.scale, pair_kept(mask, row${r}, column));`)}` : ''}
      ${each(
        rows,
        (r) =>
          `let ds${r} = select(0.0, exp2(s${r} - lse${r}) * (dp${r} - delta${r}), p.causal == 0u || first + j <= t${r});`,
      )}
      for (var d = 0u; d < HD4; d++) {
        ${each(rows, (r) => `sums${r}[d] = fma(vec4f(ds${r}), k[d], sums${r}[d]);`)}
      }
    }
  }
  ${each(
    rows,
    (r) => `if (mine + ${r}u < p.T) {
        for (var d = 0u; d < HD4; d++) { dqkv[(rows + h * HD + t${r} * p.stride + p.qOffset) / 4u + d] = sums${r}[d] * scale; }
        delta[i${r}] = delta${r};
      }`,
  )}
}`,
    queryHeads,
  );
}

export function attentionGradKVRows(shape: RowsShape): TiledVariant {
  const { rows, threads, chunk, drops } = shape;
  return attentionRows(
    shape,
    ['qkv', 'dout', 'dqkv'],
    `
var<workgroup> staged_lse: array<f32, ${chunk}>;
var<workgroup> staged_delta: array<f32, ${chunk}>;
${drops ? `var<workgroup> mask_rows: array<vec2u, ${chunk}>;` : ''}
fn tile(group: vec3u, local: vec3u, index: u32) {${place(shape, 'p.H / groupSize')}
  let kv = group.y % (p.H / groupSize);
  ${each(
    rows,
    (r) => `let at${r} = (rows + kv * HD + t${r} * p.stride) / 4u;
      var k${r}: array<vec4f, HD4>; var v${r}: array<vec4f, HD4>; var dk${r}: array<vec4f, HD4>; var dv${r}: array<vec4f, HD4>;
      for (var d = 0u; d < HD4; d++) {
        k${r}[d] = qkv[at${r} + p.kOffset / 4u + d] * (scale * ${LOG2_E});
        v${r}[d] = qkv[at${r} + p.vOffset / 4u + d];
      }`,
  )}
  // The first query that may see a key of this workgroup, and of this thread.
  let begin = select(0u, group.x * ${threads * rows}u, p.causal != 0u);
  let from_query = select(0u, mine, p.causal != 0u);
  for (var member = 0u; member < groupSize; member++) {
    let h = kv * groupSize + member;
    let row0 = (b * p.H + h) * p.T;
    ${drops ? each(rows, (r) => `let column${r} = pair_column(mask, row0 + t${r});`) : ''}
    for (var first = begin; first < p.T; first += ${chunk}u) {
      let count = min(${chunk}u, p.T - first);
      workgroupBarrier();
      for (var j = index; j < count * HD4; j += ${threads}u) {
        let row = first + j / HD4;
        staged0[j] = qkv[(rows + h * HD + row * p.stride + p.qOffset) / 4u + j % HD4];
        staged1[j] = dout[((b * p.T + row) * p.H * HD + h * HD) / 4u + j % HD4];
      }
      for (var j = index; j < count; j += ${threads}u) {
        staged_lse[j] = lse[row0 + first + j] * ${LOG2_E};
        staged_delta[j] = delta[row0 + first + j];
        ${drops ? 'mask_rows[j] = pair_row(mask, row0 + first + j);' : ''}
      }
      workgroupBarrier();
      for (var j = max(from_query, first) - first; j < count; j++) {
        var q: array<vec4f, HD4>;
        var dO: array<vec4f, HD4>;
        ${each(rows, (r) => `var s${r} = 0.0; var dp${r} = 0.0;`)}
        for (var d = 0u; d < HD4; d++) {
          q[d] = staged0[j * HD4 + d];
          dO[d] = staged1[j * HD4 + d];
          ${each(rows, (r) => `s${r} = add_dot(k${r}[d], q[d], s${r}); dp${r} = add_dot(v${r}[d], dO[d], dp${r});`)}
        }
        let row_lse = staged_lse[j];
        let row_delta = staged_delta[j];
        ${each(
          rows,
          (r) => `var weight${r} = select(0.0, exp2(s${r} - row_lse), p.causal == 0u || first + j >= t${r});
        ${
          drops
            ? `let kept${r} = pair_kept(mask, mask_rows[j], column${r});
        dp${r} = select(0.0, dp${r} * mask.scale, kept${r});
        let value${r} = select(0.0, weight${r}, kept${r});`
            : `let value${r} = weight${r};`
        }
        let ds${r} = weight${r} * (dp${r} - row_delta);`,
        )}
        for (var d = 0u; d < HD4; d++) {
          ${each(rows, (r) => `dk${r}[d] = fma(vec4f(ds${r}), q[d], dk${r}[d]); dv${r}[d] = fma(vec4f(value${r}), dO[d], dv${r}[d]);`)}
        }
      }
    }
  }
  ${each(
    rows,
    (r) => `if (mine + ${r}u < p.T) {
        for (var d = 0u; d < HD4; d++) {
          dqkv[at${r} + p.kOffset / 4u + d] = dk${r}[d] * scale;
          dqkv[at${r} + p.vOffset / 4u + d] = dv${r}[d]${drops ? ' * mask.scale' : ''};
        }
      }`,
  )}
}`,
    ({ H, groupSize }) => H / groupSize,
  );
}
