/** Stores one finished sum, if it lies within C. */
export function storeWgsl(bias: boolean): string {
  return `
fn store(m: u32, n: u32, sum: f32) {
  if (m < p.M && n < p.N) {
    let at = p.cOffset + m * p.ldc + n;
    var value = sum;
    if (p.accumulate != 0u) { value += c[at]; }
    ${
      bias
        ? `value += bias[p.biasOffset + n];
    if (p.relu != 0u && value < 0.0) { value = 0.0; }`
        : ''
    }
    c[at] = value;
  }
}`;
}
