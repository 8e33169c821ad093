import type { FittingHere, HereVerdict, Need } from '../../_lib/fit-here.ts';
import { formatBytes, formatDuration, formatMs } from '../../_lib/format.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';

/** A step that takes longer than this is worth a word. */
const SLOW_MS = 10_000;

/** Whether the run fits the machine that is really here, whatever the prediction is for, and what would. */
export function HereVerdictView(props: {
  verdict: HereVerdict;
  /** The adapter that the run would take. */
  adapterName: string;
  ranks: number;
  steps: number;
  /** Whether the rest of the panel is for another adapter than that. */
  isElsewhere: boolean;
  /** Whether its own memory budget refuses it: then that it would fit says nothing. */
  isOverBudget: boolean;
  onUse: (changes: FittingHere['changes']) => void;
}) {
  const { lacks, refused, needs, ways, estimateMs } = props.verdict;
  const bad = lacks !== null || refused !== null;
  if (!bad && props.isOverBudget) return null;
  const slow = !bad && estimateMs !== null && estimateMs > SLOW_MS;
  const looks = bad ? 'bg-bad-soft' : slow ? 'bg-warn-soft' : 'bg-sunken';
  const ink = bad ? 'text-bad' : slow ? 'text-warn' : 'text-good';
  const where = `on ${props.adapterName}`;
  if (!bad && !slow && !props.isElsewhere)
    return (
      <p role="status" data-testid="here-verdict" className="mt-2 flex gap-1.5 text-xs text-muted">
        <span className="flex gap-1 font-medium text-good">
          <Icon name="check" className="mt-px size-3.5" />
          Fits here.
        </span>
        <span className="min-w-0 flex-1">{saidNeed(needs[0], props.ranks)}</span>
      </p>
    );
  return (
    <div role="status" data-testid="here-verdict" className={`mt-3 rounded-lg p-3 ${looks}`}>
      <p className={`flex gap-2 font-medium ${ink}`}>
        <Icon name={bad || slow ? 'alert' : 'check'} className="mt-0.5 size-4" />
        <span>
          {refused
            ? `It cannot run here, ${where}`
            : lacks
              ? `It does not fit here, ${where}`
              : slow
                ? `It fits here, ${where}, and would be slow`
                : `It fits here, ${where}`}
        </span>
      </p>
      <p className="mt-1 text-xs text-muted">
        {refused ?? saidNeed(lacks ?? needs[0], props.ranks)}
        {slow && estimateMs !== null
          ? ` A step is estimated at ${formatMs(estimateMs)}, the whole run at ${formatDuration(estimateMs * props.steps)}.`
          : ''}
        {props.isElsewhere ? ' A run that you start runs here; all else in this panel is for the other adapter.' : ''}
      </p>
      {bad && ways.length ? (
        <ul className="mt-2 space-y-1.5">
          {ways.map((way) => (
            <li key={way.label} className="flex flex-wrap items-center justify-between gap-x-3 gap-y-1">
              <span className="text-xs">
                With <b className="font-semibold">{way.label}</b> it fits: {formatBytes(way.neededBytes)}, a step ≈{' '}
                {formatMs(way.estimateMs)}
              </span>
              <Button onClick={() => props.onUse(way.changes)}>Use {way.label.replace(/^the /, '')}</Button>
            </li>
          ))}
        </ul>
      ) : null}
      {bad && !ways.length ? (
        <p className="mt-1 text-xs text-muted">
          Nothing that was tried fits: free memory, or take a smaller model, fewer ranks or smaller batches.
        </p>
      ) : null}
    </div>
  );
}

function saidNeed(need: Need | undefined, ranks: number): string {
  if (!need) return '';
  const who = ranks === 1 ? 'The rank needs' : `The ${ranks} ranks together need`;
  const [needed, has] = [need.neededBytes, need.hasBytes].map(formatBytes);
  return need.of === 'host'
    ? `${who} ${needed} of host memory; ${has} are free.`
    : `The ranks on one adapter need ${needed} of its memory; it has ${has}.`;
}
