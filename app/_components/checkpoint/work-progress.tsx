import { formatBytes } from '../../_lib/format.ts';
import type { LinesState } from '../../_lib/use-lines.ts';
import { ProgressBar } from '../ui/progress-bar.tsx';

/** How many bytes of a work are done; before the first is said, that it begins. */
export function WorkProgress({ label, progress }: { label: string; progress: LinesState<unknown>['progress'] }) {
  const said = progress ? `${formatBytes(progress.doneBytes)} of ${formatBytes(progress.ofBytes)}` : 'starting…';
  return (
    <div className="mt-3 flex items-center gap-2">
      <ProgressBar label={label} value={progress?.doneBytes ?? 0} max={progress?.ofBytes ?? null} text={said} />
      <span className="min-w-28 text-right text-xs whitespace-nowrap text-muted">{said}</span>
    </div>
  );
}
