import type { Metadata } from 'next';
import { RunPage } from '../../_components/run/run-page.tsx';

export const metadata: Metadata = { title: 'Run' };

export default async function Page({ params }: { params: Promise<{ id: string }> }) {
  const { id } = await params;
  return <RunPage id={decodeURIComponent(id)} />;
}
