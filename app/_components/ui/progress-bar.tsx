/** How far something is; without a `max` nobody knows, and the bar beats. */
export function ProgressBar(props: {
  label: string;
  value: number;
  max: number | null;
  /** In words, for who does not see the bar. */
  text: string;
  colour?: string;
  tall?: boolean;
}) {
  const { value, max } = props;
  const share = max ? Math.min(1, value / max) : 0;
  return (
    <div
      role="progressbar"
      aria-label={props.label}
      aria-valuemin={max === null ? undefined : 0}
      aria-valuemax={max ?? undefined}
      aria-valuenow={max === null ? undefined : value}
      aria-valuetext={props.text}
      className={`min-w-12 flex-1 overflow-hidden rounded-full bg-[light-dark(#e3e5ec,#262a33)] ${props.tall ? 'h-2' : 'h-1.5'}`}
    >
      <svg width="100%" height="100%" aria-hidden="true" preserveAspectRatio="none" className="block">
        <rect
          width={max === null ? '100%' : `${share * 100}%`}
          height="100%"
          rx="4"
          fill={props.colour ?? 'var(--accent-fill)'}
          className={max === null ? 'opacity-60 motion-safe:animate-pulse' : 'transition-[width] duration-300'}
        />
      </svg>
    </div>
  );
}
