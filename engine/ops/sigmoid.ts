/** Past this e^x is out of float32's comfortable range, and 1 / (1 + e^x) is 0 or 1 to every digit. */
const LARGEST_EXPONENT = 80;

/** 1 / (1 + e^−x). Not finite stays so only through what it is multiplied with: x itself. */
export function sigmoid(x: number): number {
  return 1 / (1 + Math.exp(Math.min(Math.max(-x, -LARGEST_EXPONENT), LARGEST_EXPONENT)));
}

/** The same in WGSL: an exponent that overflows is undefined there, hence the bounds. */
export const sigmoidWgsl = `
fn sigmoid(x: f32) -> f32 { return 1.0 / (1.0 + exp(clamp(-x, -${LARGEST_EXPONENT}.0, ${LARGEST_EXPONENT}.0))); }
`;
