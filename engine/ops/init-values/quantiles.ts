/** Entries of the table of quantiles: one for each value of 16 random bits. */
export const QUANTILES = 65_536;
let quantileTable: Float32Array<ArrayBuffer> | null = null;

/** Quantiles of N(0, 1) at (i + ½) / 65536. */
export function normalQuantiles(): Float32Array<ArrayBuffer> {
  quantileTable ??= Float32Array.from({ length: QUANTILES }, (_, i) => inverseNormal((i + 0.5) / QUANTILES));
  return quantileTable;
}

/** Inverse of the standard normal distribution function, 0 < p < 1; P. J. Acklam's rational approximation, |error| < 1.2e-9. */
function inverseNormal(p: number): number {
  const tail = 0.02425;
  if (p > 0.5) return -inverseNormal(1 - p);
  if (p < tail) {
    const q = Math.sqrt(-2 * Math.log(p));
    const top = polynomial(
      q,
      [
        -7.784894002430293e-3, -3.223964580411365e-1, -2.400758277161838, -2.549732539343734, 4.374664141464968,
        2.938163982698783,
      ],
    );
    return top / polynomial(q, [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416, 1]);
  }
  const q = p - 0.5;
  const r = q * q;
  const top = polynomial(
    r,
    [
      -3.969683028665376e1, 2.209460984245205e2, -2.759285104469687e2, 1.38357751867269e2, -3.066479806614716e1,
      2.506628277459239,
    ],
  );
  const bottom = [
    -5.447609879822406e1, 1.615858368580409e2, -1.556989798598866e2, 6.680131188771972e1, -1.328068155288572e1, 1,
  ];
  return (top * q) / polynomial(r, bottom);
}

/** Horner's rule, highest power first. */
function polynomial(x: number, coefficients: readonly number[]): number {
  return coefficients.reduce((sum, c) => sum * x + c, 0);
}
