import type { ReactNode } from 'react';

/** A part of the page that scrolls by itself: named, reached by the keyboard, shaded at the side where more is. */
export function ScrollRegion({
  label,
  className = '',
  children,
}: {
  label: string;
  className?: string;
  children: ReactNode;
}) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls has to be reached by the keyboard.
    <section aria-label={label} tabIndex={0} className={`scroll-hint overflow-auto ${className}`}>
      {children}
    </section>
  );
}
