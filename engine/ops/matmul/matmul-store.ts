/** Stores one finished sum, if it lies within C. */
export function storeWgsl(bias: boolean): string {
  return storeThroughWgsl(`if (p.accumulate != 0u) { value += c[at]; }
    ${
      bias
        ? `value += bias[p.biasOffset + n];
    if (p.relu != 0u && value < 0.0) { value = 0.0; }`
        : ''
    }`);
}

/** The same, with what `through` does to `value`, the sum of row m and column n that goes to `at`. */
export function storeThroughWgsl(through: string): string {
  return `
fn store(m: u32, n: u32, sum: f32) {
  if (m < p.M && n < p.N) {
    let at = p.cOffset + m * p.ldc + n;
    var value = sum;
    ${through}
    c[at] = value;
  }
}`;
}

/** Stores a tile's sums by one loop: a call of `store` each takes SwiftShader longer to compile than all the rest. */
export function storeTile(sums: readonly string[], row: string, column: string): string {
  return `var sums = array<f32, ${sums.length}>(${sums.join(', ')});
  for (var at = 0u; at < ${sums.length}u; at++) { store(${row}, ${column}, sums[at]); }`;
}

/** `fn sumColumn(m: u32)`: the sum over k of column m of a, for matmul-tn-sums; `element` is the element at index `at`. */
export function columnSumWgsl(element: string): string {
  return `
fn sumColumn(m: u32) {
  if (m >= p.M) { return; }
  var sum = 0.0;
  for (var k = 0u; k < p.K; k++) {
    let at = p.aOffset + k * p.lda + m;
    sum += ${element};
  }
  let to = p.sumsOffset + m;
  if (p.sumsAccumulate != 0u) { sum += sums[to]; }
  sums[to] = sum;
}`;
}
