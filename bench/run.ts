// What `npm run bench -- NAME …` runs.
import { StudioError } from '../engine/errors.ts';
import { didYouMean } from '../engine/nearest-word.ts';

/** One benchmark: its arguments in, its figures on stdout. */
export interface Bench {
  /** What it measures, in a line. */
  readonly about: string;
  readonly load: () => Promise<{ run: (args: readonly string[]) => Promise<void> }>;
}

/** Each is a file bench/NAME.ts that exports `run`. */
const benches: Readonly<Record<string, Bench>> = {
  optimizer: {
    about: "Adam's updates with foreach on and off, beside their floor and torch's",
    load: () => import('./optimizer.ts'),
  },
  'fresh-clone': { about: 'a clean clone on a bare PATH: npm start to page', load: () => import('./fresh-clone.ts') },
  plan: { about: 'the time to plan the 1.009 B parameter model of the FSDP guide', load: () => import('./plan.ts') },
  'quick-start': {
    about: 'from the click to both runs finished, without the pages',
    load: () => import('./quick-start.ts'),
  },
  step: {
    about: "a training step on one device beside torch's, and where its time goes",
    load: () => import('./step.ts'),
  },
  'fabric-table': {
    about: "the table of Fabric's FSDP guide, ours and torch's in turns",
    load: () => import('./fabric-table.ts'),
  },
  'slow-link': {
    about: 'FULL_SHARD beside HYBRID_SHARD over a simulated link between machines, predicted and measured',
    load: () => import('./slow-link.ts'),
  },
  collectives: {
    about: 'all-gather, reduce-scatter and all-reduce beside what their copies allow and torch',
    load: () => import('./collectives.ts'),
  },
  checkpoint: {
    about: 'saving and loading checkpoints, in GB/s beside plain work on as many bytes and torch',
    load: () => import('./checkpoint.ts'),
  },
  attention: {
    about: 'attention, forward and backward, beside its floor and torch',
    load: () => import('./attention.ts'),
  },
  matmul: {
    about: 'products of the FSDP guide and large ones, beside their floor and torch',
    load: () => import('./matmul.ts'),
  },
  'matmul-half': {
    about: 'products of halves on tensor cores, beside their floor and torch',
    load: () => import('./matmul-half.ts'),
  },
};

const [name, ...args] = process.argv.slice(2);
if (name !== undefined && Object.hasOwn(benches, name)) {
  const bench = await benches[name].load();
  try {
    await bench.run(args);
  } catch (error) {
    if (!(error instanceof StudioError)) throw error;
    console.error(error.message);
    process.exitCode = 1;
  }
} else {
  const listed = Object.entries(benches).map(([each, { about }]) => `  ${each.padEnd(20)} ${about}`);
  if (name !== undefined) console.error(`there is no benchmark ${name}${didYouMean(name, Object.keys(benches))}`);
  console.error(
    ['usage: npm run bench -- NAME', ...(listed.length ? listed : ['  (no benchmark is there yet)'])].join('\n'),
  );
  process.exitCode = 1;
}
