/** Threads of a workgroup that reduces one row. */
export const ROW_TILE_THREADS = 256;

/** Lanes that add so many values each between two barriers; then each thread adds the lanes. */
const LANES = 16;

/**
 * WGSL declaring `fn tileSum(value: vec2f, index: u32) -> vec2f`: the sums over the workgroup's ROW_TILE_THREADS threads, in
 * a fixed order, returned to all of them. Every thread of the workgroup must call it.
 */
export const tileSumWgsl = `
var<workgroup> tileSumValues: array<vec2f, ${ROW_TILE_THREADS}>;
var<workgroup> tileSumLanes: array<vec2f, ${LANES}>;
fn tileSum(value: vec2f, index: u32) -> vec2f {
  tileSumValues[index] = value;
  workgroupBarrier();
  if (index < ${LANES}u) {
    var lane = vec2f();
    for (var i = 0u; i < ${ROW_TILE_THREADS / LANES}u; i++) { lane += tileSumValues[i * ${LANES}u + index]; }
    tileSumLanes[index] = lane;
  }
  workgroupBarrier();
  var sum = vec2f();
  for (var i = 0u; i < ${LANES}u; i++) { sum += tileSumLanes[i]; }
  return sum;
}
`;
