'use client';

import Link from 'next/link';
import { usePathname } from 'next/navigation';
import type { ReactNode } from 'react';
import type { Theme } from '../_lib/theme.ts';
import { AdapterBadge } from './adapter-badge.tsx';
import { ThemeToggle } from './theme-toggle.tsx';
import { Logo } from './ui/logo.tsx';

const LINKS = [
  { href: '/runs', label: 'Runs' },
  { href: '/runs/new', label: 'New run' },
  { href: '/checkpoints', label: 'Checkpoints' },
] as const;

/** The frame of every page: brand, the ways to go, the adapter, the theme. */
export function Shell({ theme, children }: { theme: Theme; children: ReactNode }) {
  const path = usePathname();
  const here = path === '/' ? '/runs' : path;
  return (
    <>
      <a
        href="#main"
        className="sr-only z-50 rounded-md bg-accent-fill text-white focus:not-sr-only focus:fixed focus:top-2 focus:left-2 focus:px-3 focus:py-2"
      >
        Skip to content
      </a>
      <header className="sticky top-0 z-30 border-b border-line bg-bg/85 backdrop-blur-md">
        <div className="mx-auto flex h-12 max-w-[1360px] items-center gap-1 px-4 sm:gap-2 sm:px-6">
          <Link href="/runs" className="mr-1 flex items-center gap-2 rounded-md py-1 pr-2 font-semibold tracking-tight">
            <Logo className="size-[22px]" />
            <span className="max-[420px]:sr-only">Shard Studio</span>
          </Link>
          <nav aria-label="Main" className="flex items-center gap-0.5">
            {LINKS.map(({ href, label }) => (
              <Link
                key={href}
                href={href}
                aria-current={here === href ? 'page' : undefined}
                className="rounded-md px-2.5 py-1.5 text-muted transition-colors hover:bg-hover hover:text-ink aria-[current]:bg-hover aria-[current]:font-medium aria-[current]:text-ink"
              >
                {label}
              </Link>
            ))}
          </nav>
          <div className="ml-auto flex min-w-0 items-center gap-1.5">
            <AdapterBadge />
            <ThemeToggle initial={theme} />
          </div>
        </div>
      </header>
      <main id="main" tabIndex={-1} className="mx-auto max-w-[1360px] px-4 pt-5 pb-20 outline-none sm:px-6">
        {children}
      </main>
    </>
  );
}
