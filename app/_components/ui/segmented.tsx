'use client';

import { useId } from 'react';

export interface Segment<T> {
  readonly value: T;
  readonly label: string;
  readonly hint?: string;
  /** A CSS colour for a dot before the label. */
  readonly colour?: string;
}

/** One of few: radio buttons drawn as one control, moved through with the arrow keys. */
export function Segmented<T extends string | number | null>(props: {
  label: string;
  labelledBy?: string;
  describedBy?: string;
  segments: readonly Segment<T>[];
  value: T;
  onChange: (value: T) => void;
  className?: string;
}) {
  const name = useId();
  return (
    <div
      role="radiogroup"
      aria-label={props.labelledBy ? undefined : props.label}
      aria-labelledby={props.labelledBy}
      aria-describedby={props.describedBy}
      className={`inline-flex max-w-full flex-wrap gap-0.5 rounded-lg border border-line bg-sunken p-0.5 ${props.className ?? ''}`}
    >
      {props.segments.map((segment) => (
        <label
          key={String(segment.value)}
          title={segment.hint}
          className="relative flex min-h-[26px] cursor-pointer items-center gap-1.5 rounded-md px-2.5 text-muted transition-colors hover:text-ink has-checked:bg-panel has-checked:font-medium has-checked:text-ink has-checked:shadow-[0_0_0_1px_var(--line-strong),0_1px_2px_rgb(0_0_0/0.06)] has-focus-visible:outline-2 has-focus-visible:outline-focus pointer-coarse:min-h-9"
        >
          <input
            type="radio"
            name={name}
            className="absolute inset-0 m-0 size-full cursor-pointer opacity-0"
            checked={segment.value === props.value}
            onChange={() => props.onChange(segment.value)}
          />
          {segment.colour ? <Dot colour={segment.colour} /> : null}
          {segment.label}
        </label>
      ))}
    </div>
  );
}

/** A coloured dot that ties a word to a line of a chart. */
export function Dot({ colour, square = false }: { colour: string; square?: boolean }) {
  return (
    <svg viewBox="0 0 8 8" className="size-2 shrink-0" aria-hidden="true">
      {square ? <rect width="8" height="8" rx="2" fill={colour} /> : <circle cx="4" cy="4" r="4" fill={colour} />}
    </svg>
  );
}
