/**
 * The one order in which a run of numbers is added in float32 wherever the result must not depend on who adds it: 32 lanes,
 * lane l adding elements l, l + 32, l + 64, … in turn, then the lanes in halves (l and l + 16, l and l + 8, … 1).
 */
export const SUM_LANES = 32;

const lanes = new Float32Array(SUM_LANES);

/** Σ x[offset + i], or with `squares` Σ x[offset + i]², for i below length, each operation rounded to float32. */
export function fixedSum(x: Float32Array, offset: number, length: number, squares: boolean): number {
  // Under a lane's width the other lanes stay at 0, and adding 0 changes nothing.
  if (length === 1) return squares ? Math.fround(x[offset] * x[offset]) : x[offset];
  lanes.fill(0);
  for (let i = 0; i < length; i++) {
    const value = x[offset + i];
    lanes[i % SUM_LANES] += squares ? Math.fround(value * value) : value;
  }
  for (let half = SUM_LANES / 2; half >= 1; half /= 2) {
    for (let l = 0; l < half; l++) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

/**
 * WGSL declaring `fn ${name}(offset: u32, length: u32) -> f32`, the same sum in one thread. \`term\` is the expression of one
 * number, in terms of its index `at`.
 */
export function fixedSumWgsl(name: string, term: string): string {
  const quads = Array.from({ length: SUM_LANES / 4 }, (_, q) => q);
  const whole = (lane: number) => `${name}Term(c + ${lane}u)`;
  const partial = (lane: number) => `${name}Within(c + ${lane}u, end)`;
  const add = (value: (lane: number) => string) =>
    quads.map((q) => `s${q} += vec4f(${[0, 1, 2, 3].map((lane) => value(4 * q + lane)).join(', ')});`).join('\n    ');
  return `
fn ${name}Term(at: u32) -> f32 { return ${term}; }
fn ${name}Within(at: u32, end: u32) -> f32 {
  if (at < end) { return ${name}Term(at); }
  return 0.0;
}
fn ${name}(offset: u32, length: u32) -> f32 {
  if (length == 1u) { return ${name}Term(offset); }
  let end = offset + length;
  var c = offset;
  ${quads.map((q) => `var s${q} = vec4f();`).join(' ')}
  for (; c + ${SUM_LANES}u <= end; c += ${SUM_LANES}u) {
    ${add(whole)}
  }
  if (c < end) {
    ${add(partial)}
  }
  let s = ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7));
  return (s.x + s.z) + (s.y + s.w);
}
`;
}

/** Threads of a workgroup of the tiled variant: eight sums at a time. */
export const TILED_SUM_THREADS = 256;

/**
 * WGSL declaring `fn ${name}(offset: u32, length: u32, index: u32) -> f32`, the same sum by 32 threads; thread index % 32 = 0
 * has it. Every thread of the workgroup must call it. `term` as above.
 */
export function tiledFixedSumWgsl(name: string, term: string): string {
  return `
var<workgroup> ${name}Lanes: array<f32, ${TILED_SUM_THREADS}>;
fn ${name}(offset: u32, length: u32, index: u32) -> f32 {
  let lane = index % ${SUM_LANES}u;
  let end = offset + length;
  var sum = 0.0;
  for (var at = offset + lane; at < end; at += ${SUM_LANES}u) { sum += ${term}; }
  ${name}Lanes[index] = sum;
  for (var half = ${SUM_LANES / 2}u; half >= 1u; half /= 2u) {
    workgroupBarrier();
    if (lane < half) { ${name}Lanes[index] += ${name}Lanes[index + half]; }
  }
  return ${name}Lanes[index];
}
`;
}
