import Link from 'next/link';
import type { ComponentProps } from 'react';

const LOOKS = {
  primary:
    'bg-accent-fill text-white shadow-[inset_0_1px_0_rgb(255_255_255/0.16)] hover:bg-accent-fill-hover disabled:hover:bg-accent-fill',
  plain: 'border border-line-strong bg-panel text-ink hover:bg-hover',
  quiet: 'text-muted hover:bg-hover hover:text-ink',
  danger: 'border border-line-strong bg-panel text-bad hover:border-bad hover:bg-bad-soft',
  'danger-fill': 'bg-[light-dark(#b8282f,#c8353c)] text-white hover:bg-[light-dark(#9f2027,#d8434a)]',
} as const;
const SIZES = { md: 'h-8 px-3 text-sm', lg: 'h-10 px-4 text-base', icon: 'size-8 justify-center' } as const;

export type ButtonLook = keyof typeof LOOKS;

/** The classes of a button, for what is not a <button>. */
export function buttonClass(look: ButtonLook = 'plain', size: keyof typeof SIZES = 'md'): string {
  return `inline-flex shrink-0 items-center gap-1.5 rounded-[7px] font-medium whitespace-nowrap transition-colors disabled:cursor-not-allowed disabled:opacity-50 pointer-coarse:min-h-10 ${LOOKS[look]} ${SIZES[size]}`;
}

type Looks = { look?: ButtonLook; size?: keyof typeof SIZES };

export function Button({ look, size, className = '', ...props }: ComponentProps<'button'> & Looks) {
  return <button type="button" className={`${buttonClass(look, size)} ${className}`} {...props} />;
}

export function ButtonLink({ look, size, className = '', ...props }: ComponentProps<typeof Link> & Looks) {
  return <Link className={`${buttonClass(look, size)} ${className}`} {...props} />;
}
