import type { Metadata } from 'next';
import { LibraryPage } from '../_components/checkpoint/library-page.tsx';

export const metadata: Metadata = { title: 'Checkpoints' };

export default function Page() {
  return <LibraryPage />;
}
