import { RunsPage } from './_components/runs/runs-page.tsx';

export default function Page() {
  return <RunsPage />;
}
