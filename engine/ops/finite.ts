/**
 * A WGSL implementation may assume that no number is NaN or infinite, so finiteness is read off the exponent's bits.
 * WGSL: `isFinite(x)`.
 */
export const isFiniteWgsl = `
fn isFinite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u; }
`;
