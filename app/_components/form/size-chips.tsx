import type { Draft } from '../../_lib/config-draft.ts';
import { formatCount, formatShortCount } from '../../_lib/format.ts';
import { hasSize, sizesFor, withSize } from '../../_lib/model-sizes.ts';

/** Sizes of the chosen model; one chosen fills in its fields. */
export function SizeChips({ draft, onChange }: { draft: Draft; onChange: (next: Draft) => void }) {
  return (
    <fieldset aria-label="Sizes of this model" className="flex flex-wrap items-center gap-1.5 sm:col-span-full">
      <span className="mr-1 font-medium">Sizes</span>
      {sizesFor(draft).map((size) => (
        <button
          key={size.label}
          type="button"
          title={`${size.about}: ${formatCount(size.params)} parameters`}
          aria-pressed={hasSize(draft, size)}
          onClick={() => onChange(withSize(draft, size))}
          className={chipClass}
        >
          {size.label} <span className="text-faint">{formatShortCount(size.params)}</span>
        </button>
      ))}
    </fieldset>
  );
}

/** A button that fills in fields; pressed while they say what it says. */
export const chipClass =
  'rounded-full border border-line bg-panel px-3 py-1 text-muted transition-colors hover:border-line-strong hover:text-ink aria-pressed:border-accent aria-pressed:bg-accent-soft aria-pressed:text-accent pointer-coarse:py-2';
