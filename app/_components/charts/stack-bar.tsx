import { CATEGORY_LOOKS } from '../../_lib/categories.ts';
import { formatBytes } from '../../_lib/format.ts';

/** Bytes by category as one bar, as long as its share of `ofBytes`. A mark shows what is reserved. */
export function StackBar(props: {
  label: string;
  byCategory: readonly number[];
  ofBytes: number;
  reservedBytes?: number | null;
  className?: string;
}) {
  const { byCategory, ofBytes, reservedBytes } = props;
  const percent = (bytes: number) => `${ofBytes ? Math.min(100, (bytes / ofBytes) * 100) : 0}%`;
  const starts = byCategory.map((_, i) => byCategory.slice(0, i).reduce((sum, bytes) => sum + bytes, 0));
  return (
    <svg
      role="img"
      aria-label={props.label}
      className={`block h-3.5 w-full overflow-hidden rounded-[4px] ${props.className ?? ''}`}
    >
      <rect width="100%" height="100%" fill="var(--sunken)" />
      {reservedBytes ? (
        <rect width={percent(reservedBytes)} height="100%" fill="var(--line-strong)" opacity="0.55" />
      ) : null}
      {byCategory.map((bytes, i) => (
        <rect
          key={CATEGORY_LOOKS[i].category}
          x={percent(starts[i])}
          width={percent(bytes)}
          height="100%"
          fill={CATEGORY_LOOKS[i].colour}
        >
          <title>{`${CATEGORY_LOOKS[i].category} ${formatBytes(bytes)}`}</title>
        </rect>
      ))}
    </svg>
  );
}
