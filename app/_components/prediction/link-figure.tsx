import { formatBytes, formatMs } from '../../_lib/format.ts';
import type { LinkComparison } from '../../_lib/over-link.ts';

/** What HYBRID_SHARD is for: over a slow link between rows, its step beside FULL_SHARD's, and what of both crosses the link. */
export function LinkFigure({ comparison, label }: { comparison: LinkComparison; label: string }) {
  const { linkGBps, hybrid, fullShard } = comparison;
  const other = label === 'HYBRID_SHARD_ZERO2' ? 'SHARD_GRAD_OP' : 'FULL_SHARD';
  const rows = [
    { name: label, about: 'sharded within a row', ...hybrid, colour: 'var(--run-3)' },
    { name: other, about: 'sharded over all ranks', ...fullShard, colour: 'var(--run-2)' },
  ];
  const most = Math.max(...rows.map(({ estimateMs }) => estimateMs));
  const times = fullShard.estimateMs / hybrid.estimateMs;
  const moreBytes = hybrid.peakBytes - fullShard.peakBytes;
  const moreMemory = moreBytes > 0 ? `It costs ${formatBytes(moreBytes)} more memory a rank.` : '';
  return (
    <section aria-label="Over the slow link" className="mt-5" data-testid="over-link">
      <h3 className="font-semibold">A step over {linkGBps} GB/s between rows</h3>
      <ul className="mt-2 space-y-2">
        {rows.map(({ name, about, estimateMs, crossingBytes, peakBytes, colour }) => (
          <li key={name}>
            <div className="mb-1 flex flex-wrap items-baseline justify-between gap-x-2 text-xs">
              <span>
                <span className="font-mono">{name}</span> <span className="text-faint">{about}</span>
              </span>
              <span>
                <span className="font-medium">≈ {formatMs(estimateMs)}</span>
                <span className="ml-2 text-faint">
                  {formatBytes(crossingBytes)} cross it · {formatBytes(peakBytes)} reserved
                </span>
              </span>
            </div>
            <svg
              role="img"
              aria-label={`${name}: ${formatMs(estimateMs)} a step`}
              className="block h-3.5 w-full overflow-hidden rounded-[4px]"
            >
              <rect width="100%" height="100%" fill="var(--sunken)" />
              <rect width={`${most ? (estimateMs / most) * 100 : 0}%`} height="100%" rx="4" fill={colour} />
            </svg>
          </li>
        ))}
      </ul>
      <p className="mt-1.5 text-xs text-faint">
        {times > 1.05
          ? `Hybrid sharding is ${times.toFixed(1)}× as fast here: it gathers within a row, and only shards of gradients cross the link. ${moreMemory}`
          : 'Hybrid sharding does not pay here: the link is not what a step waits for. It pays where the link is slow for the model’s size.'}
      </p>
    </section>
  );
}
