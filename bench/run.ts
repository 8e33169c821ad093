// What `npm run bench -- NAME …` runs.

/** One benchmark: its arguments in, its figures on stdout. */
export interface Bench {
  /** What it measures, in a line. */
  readonly about: string;
  readonly load: () => Promise<{ run: (args: readonly string[]) => Promise<void> }>;
}

/** Each is a file bench/NAME.ts that exports `run`. */
const benches: Readonly<Record<string, Bench>> = {
  'fresh-clone': { about: 'a clean clone on a bare PATH: npm start to page', load: () => import('./fresh-clone.ts') },
};

const [name, ...args] = process.argv.slice(2);
if (name !== undefined && Object.hasOwn(benches, name)) {
  const bench = await benches[name].load();
  await bench.run(args);
} else {
  const listed = Object.entries(benches).map(([each, { about }]) => `  ${each.padEnd(20)} ${about}`);
  console.error(
    ['usage: npm run bench -- NAME', ...(listed.length ? listed : ['  (no benchmark is there yet)'])].join('\n'),
  );
  process.exitCode = 1;
}
