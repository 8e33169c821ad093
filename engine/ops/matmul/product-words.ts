const PARAMS = ['M', 'N', 'K', 'aOffset', 'lda', 'bOffset', 'ldb', 'cOffset', 'ldc'] as const;

/** What WGSL calls the operands of a product, its parameters and the function that stores a sum, so that two fit in one shader. */
export type ProductWords = Readonly<Record<'a' | 'b' | 'c' | 'accumulate' | 'store' | (typeof PARAMS)[number], string>>;

/** Those of a kernel that is one product. */
export const plainWords: ProductWords = {
  ...(Object.fromEntries(PARAMS.map((name) => [name, `p.${name}`])) as Record<(typeof PARAMS)[number], string>),
  ...{ a: 'a', b: 'b', c: 'c', accumulate: 'p.accumulate', store: 'store' },
};
