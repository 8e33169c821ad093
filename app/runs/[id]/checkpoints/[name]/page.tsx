import type { Metadata } from 'next';
import { CheckpointPage } from '../../../../_components/checkpoint/checkpoint-page.tsx';

export const metadata: Metadata = { title: 'Checkpoint' };

export default async function Page({ params }: { params: Promise<{ id: string; name: string }> }) {
  const { id, name } = await params;
  return <CheckpointPage checkpoint={{ runId: decodeURIComponent(id), name: decodeURIComponent(name) }} />;
}
