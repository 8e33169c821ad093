import type { Metadata } from 'next';
import { ClonedRunPage } from '../../_components/form/cloned-run-page.tsx';
import { NewRunPage } from '../../_components/form/new-run-page.tsx';
import { PRESETS } from '../../_lib/presets.ts';

export const metadata: Metadata = { title: 'New run' };

export default async function Page({ searchParams }: { searchParams: Promise<{ from?: string | string[] }> }) {
  const { from } = await searchParams;
  return typeof from === 'string' ? (
    <ClonedRunPage key={from} from={from} />
  ) : (
    <NewRunPage initial={PRESETS[0].config} from={null} />
  );
}
