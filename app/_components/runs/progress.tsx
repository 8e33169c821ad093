import type { RunState } from '../../../server/contract.ts';
import { formatCount } from '../../_lib/format.ts';
import { stepsDone } from '../../_lib/step-words.ts';

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
  const share = of ? Math.min(1, done / of) : 0;
  return (
    <div className="flex items-center gap-2">
      <div
        role="progressbar"
        aria-label={props.label}
        aria-valuemin={0}
        aria-valuemax={of}
        aria-valuenow={done}
        aria-valuetext={stepsDone(done, of)}
        className={`min-w-12 flex-1 overflow-hidden rounded-full bg-[light-dark(#e3e5ec,#262a33)] ${props.tall ? 'h-2' : 'h-1.5'}`}
      >
        <svg width="100%" height="100%" aria-hidden="true" preserveAspectRatio="none" className="block">
          <rect
            width={`${share * 100}%`}
            height="100%"
            rx="4"
            fill={props.colour ?? 'var(--accent-fill)'}
            className="transition-[width] duration-300"
          />
        </svg>
      </div>
      {props.bare ? null : (
        <span className="min-w-16 text-right text-xs whitespace-nowrap text-muted">
          {formatCount(done)} / {formatCount(of)}
        </span>
      )}
    </div>
  );
}
