import type { Metadata } from 'next';
import { ClonedRunPage } from '../../_components/form/cloned-run-page.tsx';
import { NewRunPage } from '../../_components/form/new-run-page.tsx';
import { PRESETS } from '../../_lib/presets.ts';

export const metadata: Metadata = { title: 'New run' };

export default async function Page({
  searchParams,
}: {
  searchParams: Promise<{ from?: string | string[]; resume?: string | string[] }>;
}) {
  const { from, resume } = await searchParams;
  return typeof from === 'string' ? (
    <ClonedRunPage key={`${from} ${resume}`} from={from} resume={typeof resume === 'string' ? resume : null} />
  ) : (
    <NewRunPage initial={PRESETS[0].config} from={null} />
  );
}
