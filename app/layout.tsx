import type { Metadata, Viewport } from 'next';
import localFont from 'next/font/local';
import { cookies } from 'next/headers';
import type { ReactNode } from 'react';
import { Providers } from './_components/providers.tsx';
import { Shell } from './_components/shell.tsx';
import { THEME_COOKIE, toTheme } from './_lib/theme.ts';
import './globals.css';

/** Geist Mono, as Next brings it: tables of figures are aligned on any machine. */
const mono = localFont({
  src: '../node_modules/next/dist/next-devtools/server/font/geist-mono-latin.woff2',
  variable: '--font-geist-mono',
  weight: '100 900',
  display: 'swap',
  fallback: ['ui-monospace', 'SFMono-Regular', 'Menlo', 'Consolas', 'monospace'],
  adjustFontFallback: false,
});

export const metadata: Metadata = {
  title: { default: 'Shard Studio', template: '%s · Shard Studio' },
  description: 'What each way of sharding a training run costs in memory and in time, predicted and measured.',
  icons: { icon: '/logo.svg' },
};

export const viewport: Viewport = {
  width: 'device-width',
  initialScale: 1,
  themeColor: [
    { media: '(prefers-color-scheme: light)', color: '#f6f6f8' },
    { media: '(prefers-color-scheme: dark)', color: '#0b0c10' },
  ],
};

/** The theme is read from a cookie while the page is drawn, so that no script has to run before the first paint. */
export default async function RootLayout({ children }: { children: ReactNode }) {
  const theme = toTheme((await cookies()).get(THEME_COOKIE)?.value);
  return (
    <html lang="en" className={mono.variable} data-theme={theme === 'system' ? undefined : theme}>
      <body>
        <Providers>
          <Shell theme={theme}>{children}</Shell>
        </Providers>
      </body>
    </html>
  );
}
