const ROW = 32_768;

/** The grid of `tiles` workgroups of a tiled variant, folded so that no dimension is over WebGPU's limit. */
export function foldTiles(tiles: number): readonly [number, number, number] {
  return [Math.min(tiles, ROW), Math.ceil(tiles / ROW), 1];
}

/** WGSL: the index of a workgroup in such a grid; the last row of the grid may hold indices of `tiles` and above. */
export const tileIndexWgsl = `
fn tileIndex(group: vec3u) -> u32 { return group.y * ${ROW}u + group.x; }
`;
