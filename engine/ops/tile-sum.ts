/** Threads of a workgroup that reduces one row. */
export const ROW_TILE_THREADS = 256;

/**
 * WGSL declaring `fn tileSum(value: vec2f, index: u32) -> vec2f`: the sums over the workgroup's ROW_TILE_THREADS threads, in
 * a fixed tree, returned to all of them. Every thread of the workgroup must call it.
 */
export const tileSumWgsl = `
var<workgroup> tileSumLanes: array<vec2f, ${ROW_TILE_THREADS}>;
fn tileSum(value: vec2f, index: u32) -> vec2f {
  tileSumLanes[index] = value;
  for (var half = ${ROW_TILE_THREADS / 2}u; half >= 1u; half /= 2u) {
    workgroupBarrier();
    if (index < half) { tileSumLanes[index] += tileSumLanes[index + half]; }
  }
  workgroupBarrier();
  let sum = tileSumLanes[0];
  workgroupBarrier();
  return sum;
}
`;
