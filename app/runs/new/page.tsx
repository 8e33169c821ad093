import type { Metadata } from 'next';
import { RunFromCheckpointPage } from '../../_components/checkpoint/run-from-checkpoint-page.tsx';
import { ClonedRunPage } from '../../_components/form/cloned-run-page.tsx';
import { NewRunPage } from '../../_components/form/new-run-page.tsx';
import { broughtAt } from '../../_lib/checkpoint-ref.ts';
import { PRESETS } from '../../_lib/presets.ts';
import type { Start } from '../../_lib/started-config.ts';

export const metadata: Metadata = { title: 'New run' };

type Query = Readonly<Record<string, string | string[] | undefined>>;

/** `from` is a run whose settings it has, `resume` or `init` the checkpoint that it starts from. */
export default async function Page({ searchParams }: { searchParams: Promise<Query> }) {
  const query = await searchParams;
  const start = startOf(query);
  const brought = start && broughtAt(start.path);
  if (typeof query.from === 'string')
    return <ClonedRunPage key={`${query.from} ${start?.use} ${start?.path}`} from={query.from} start={start} />;
  if (start && brought)
    return <RunFromCheckpointPage key={`${start.use} ${start.path}`} checkpoint={brought} start={start} />;
  return <NewRunPage initial={PRESETS[0].config} from={null} />;
}

function startOf(query: Query): Start | null {
  for (const use of ['resume', 'init'] as const) {
    const path = query[use];
    if (typeof path === 'string') return { use, path, step: Number(/step-(\d+)/.exec(path)?.[1] ?? 0) };
  }
  return null;
}
