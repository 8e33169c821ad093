/** √(2/π) and the weight of x³ in GELU's tanh form (Hendrycks and Gimpel 2016; gelu_new in Hugging Face's GPT-2). */
const ROOT = Math.sqrt(2 / Math.PI);
const CUBE = 0.044715;

/** z with gelu(x) = x·σ(z): ½·(1 + tanh a) is σ(2a), which overflows nowhere and cancels nothing. */
export function geluExponent(x: number): number {
  return 2 * ROOT * (x + CUBE * x * x * x);
}

/** dz/dx. */
export function geluExponentSlope(x: number): number {
  return 2 * ROOT * (1 + 3 * CUBE * x * x);
}

export const geluWgsl = `
fn gelu_exponent(x: f32) -> f32 { return ${2 * ROOT} * (x + ${CUBE} * x * x * x); }
fn gelu_exponent_slope(x: f32) -> f32 { return ${2 * ROOT} * (1.0 + ${3 * CUBE} * x * x); }
`;
