import type { Metadata } from 'next';
import { RunsPage } from '../_components/runs/runs-page.tsx';

export const metadata: Metadata = { title: 'Runs' };

export default function Page() {
  return <RunsPage />;
}
