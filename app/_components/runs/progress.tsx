import type { RunState } from '../../../server/contract.ts';
import { formatCount } from '../../_lib/format.ts';
import { stepsDone } from '../../_lib/step-words.ts';
import { ProgressBar } from '../ui/progress-bar.tsx';

/** The bar's colour tells how it ended; while it goes on it has the accent's. */
export function progressColour(state: RunState): string | undefined {
  if (state === 'finished') return 'var(--good)';
  if (state === 'failed') return 'var(--bad)';
  return state === 'stopped' ? 'var(--warn)' : undefined;
}

/** How far a run is: a bar and "7 / 10". */
export function Progress(props: {
  label: string;
  done: number;
  of: number;
  colour?: string;
  tall?: boolean;
  bare?: boolean;
}) {
  const { done, of } = props;
  return (
    <div className="flex items-center gap-2">
      <ProgressBar
        label={props.label}
        value={done}
        max={of}
        text={stepsDone(done, of)}
        colour={props.colour}
        tall={props.tall}
      />
      {props.bare ? null : (
        <span className="min-w-16 text-right text-xs whitespace-nowrap text-muted">
          {formatCount(done)} / {formatCount(of)}
        </span>
      )}
    </div>
  );
}
