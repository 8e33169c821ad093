import next from 'eslint-config-next/core-web-vitals';

// Biome formats and lints everything; this is only for what it does not know: the rules of React hooks and of Next.
export default [
  ...next.map((config) => ({ ...config, files: ['app/**/*.{ts,tsx}'] })),
  { ignores: ['.next/**', 'node_modules/**'] },
];
