import type { Metadata } from 'next';
import { CheckpointPage } from '../../_components/checkpoint/checkpoint-page.tsx';

export const metadata: Metadata = { title: 'Checkpoint' };

export default async function Page({ params }: { params: Promise<{ name: string }> }) {
  const { name } = await params;
  return <CheckpointPage checkpoint={{ runId: null, name: decodeURIComponent(name) }} />;
}
