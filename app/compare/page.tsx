import type { Metadata } from 'next';
import { ComparePage } from '../_components/compare/compare-page.tsx';

export const metadata: Metadata = { title: 'Compare' };

export default async function Page({ searchParams }: { searchParams: Promise<{ ids?: string | string[] }> }) {
  const { ids } = await searchParams;
  const list = (typeof ids === 'string' ? ids.split(',') : (ids ?? [])).filter(Boolean);
  return <ComparePage ids={[...new Set(list)]} />;
}
