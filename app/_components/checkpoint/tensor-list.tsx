import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { CheckpointDetails, TensorDetails } from '../../../server/contract.ts';
import { getTensor } from '../../_lib/api.ts';
import type { CheckpointRef } from '../../_lib/checkpoint-ref.ts';
import { formatBytes, formatCount, formatExactBytes } from '../../_lib/format.ts';
import { Button } from '../ui/button.tsx';

type Tensor = CheckpointDetails['tensors'][number];

const rankColour = (rank: number) => `var(--run-${(rank % 8) + 1})`;

/** Rows shown at first, and so many more each time: what stands below is not far. */
const PAGE = 25;

/** The tensors of a checkpoint; one opened shows its chunks by rank and what its elements are like. */
export function TensorList({ checkpoint, tensors }: { checkpoint: CheckpointRef; tensors: readonly Tensor[] }) {
  const [pages, setPages] = useState(1);
  const shown = tensors.slice(0, pages * PAGE);
  if (!tensors.length) return <p className="text-muted">No tensor has such a name.</p>;
  return (
    <>
      <ul className="divide-y divide-line">
        {shown.map((tensor) => (
          <TensorRow key={tensor.name} checkpoint={checkpoint} tensor={tensor} />
        ))}
      </ul>
      {shown.length < tensors.length ? (
        <Button look="quiet" className="mt-2" onClick={() => setPages(pages + 1)}>
          {formatCount(tensors.length - shown.length)} more
        </Button>
      ) : null}
    </>
  );
}

function TensorRow({ checkpoint, tensor }: { checkpoint: CheckpointRef; tensor: Tensor }) {
  const [open, setOpen] = useState(false);
  const { name, dtype, shape, bytes, parts } = tensor;
  return (
    <li>
      <details onToggle={(e) => setOpen(e.currentTarget.open)}>
        <summary className="flex cursor-pointer flex-wrap items-baseline gap-x-3 gap-y-0.5 rounded-md py-1.5 text-xs hover:bg-hover">
          <span className="min-w-0 flex-1 basis-64 font-mono font-medium break-all">{name}</span>
          <span className="font-mono text-muted">
            {dtype} [{shape.join(', ')}]
          </span>
          <span className="w-20 text-right text-faint">{parts.length > 1 ? `${parts.length} chunks` : ''}</span>
          <span className="w-20 text-right text-muted" title={formatExactBytes(bytes)}>
            {formatBytes(bytes)}
          </span>
        </summary>
        {open ? (
          <div className="space-y-3 py-3">
            {parts.length > 1 ? <Chunks tensor={tensor} /> : null}
            <Values checkpoint={checkpoint} tensor={name} />
          </div>
        ) : null}
      </details>
    </li>
  );
}

/** Which rows each rank wrote, as one bar. */
function Chunks({ tensor: { shape, parts } }: { tensor: Tensor }) {
  const rows = shape[0] || 1;
  const who = (part: Tensor['parts'][number]) => (part.rank === null ? part.file : `rank ${part.rank}`);
  const range = ({ offsets, sizes }: Tensor['parts'][number]) =>
    `rows ${offsets[0] ?? 0} to ${(offsets[0] ?? 0) + (sizes[0] ?? 1) - 1}`;
  return (
    <div>
      <div className="flex h-3 w-full overflow-hidden rounded-[4px] bg-sunken" aria-hidden="true">
        {parts.map((part) => (
          <span
            key={`${part.file} ${part.offsets}`}
            style={{ width: `${((part.sizes[0] ?? 1) / rows) * 100}%`, background: rankColour(part.rank ?? 0) }}
            className="border-r border-panel last:border-0"
          />
        ))}
      </div>
      <ul className="mt-1.5 flex flex-wrap gap-x-4 gap-y-0.5 text-xs text-muted">
        {parts.map((part) => (
          <li key={`${part.file} ${part.offsets}`} title={part.file}>
            {who(part)}: {range(part)}
          </li>
        ))}
      </ul>
    </div>
  );
}

function Values({ checkpoint, tensor }: { checkpoint: CheckpointRef; tensor: string }) {
  const { data, error } = useQuery({
    queryKey: ['tensor', checkpoint, tensor],
    queryFn: ({ signal }) => getTensor(checkpoint, tensor, signal),
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
  });
  if (error) return <p className="text-xs text-bad">{error.message}</p>;
  if (!data) return <p className="text-xs text-faint">Reading its elements…</p>;
  const figures: [string, string][] = [
    ['elements', formatCount(data.elements)],
    ['min', figure(data.min)],
    ['max', figure(data.max)],
    ['mean', figure(data.mean)],
    ...(data.nan ? ([['NaN', formatCount(data.nan)]] as [string, string][]) : []),
    ...(data.positiveInfinity ? ([['+∞', formatCount(data.positiveInfinity)]] as [string, string][]) : []),
    ...(data.negativeInfinity ? ([['−∞', formatCount(data.negativeInfinity)]] as [string, string][]) : []),
  ];
  return (
    <div className="flex flex-wrap items-end gap-x-6 gap-y-3">
      <dl className="flex flex-wrap gap-x-5 gap-y-1 text-xs">
        {figures.map(([label, value]) => (
          <div key={label}>
            <dt className="text-faint">{label}</dt>
            <dd className="font-mono">{value}</dd>
          </div>
        ))}
      </dl>
      <Histogram details={data} />
    </div>
  );
}

function Histogram({ details: { histogram, min, max, elements } }: { details: TensorDetails }) {
  const most = Math.max(1, ...histogram);
  if (!histogram.length || elements < 2) return null;
  return (
    <figure className="min-w-48 flex-1 basis-64">
      <svg
        role="img"
        aria-label={`Histogram of the elements from ${figure(min)} to ${figure(max)}`}
        viewBox={`0 0 ${histogram.length} 32`}
        preserveAspectRatio="none"
        className="block h-12 w-full text-accent"
      >
        {histogram.map((count, i) => (
          <rect
            // biome-ignore lint/suspicious/noArrayIndexKey: a bin is its place
            key={i}
            x={i + 0.08}
            width={0.84}
            y={32 - (count / most) * 32}
            height={(count / most) * 32}
            fill="currentColor"
          />
        ))}
      </svg>
      <figcaption className="mt-0.5 flex justify-between font-mono text-[0.6875rem] text-faint">
        <span>{figure(min)}</span>
        <span>{figure(max)}</span>
      </figcaption>
    </figure>
  );
}

const figure = (value: number | null): string => (value === null ? '–' : Number(value.toPrecision(5)).toString());
