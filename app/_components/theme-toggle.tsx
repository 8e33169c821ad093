'use client';

import { useState } from 'react';
import { applyTheme, type Theme } from '../_lib/theme.ts';
import { Icon, type IconName } from './ui/icon.tsx';

const NEXT: Record<Theme, Theme> = { system: 'light', light: 'dark', dark: 'system' };
const ICON: Record<Theme, IconName> = { system: 'monitor', light: 'sun', dark: 'moon' };
const NAME: Record<Theme, string> = { system: 'as the system', light: 'light', dark: 'dark' };

/** Steps through the three looks: as the system, light, dark. */
export function ThemeToggle({ initial }: { initial: Theme }) {
  const [theme, setTheme] = useState(initial);
  const choose = () => {
    applyTheme(NEXT[theme]);
    setTheme(NEXT[theme]);
  };
  const label = `Theme: ${NAME[theme]}. Switch to ${NAME[NEXT[theme]]}`;
  return (
    <button
      type="button"
      onClick={choose}
      aria-label={label}
      title={label}
      className="grid size-8 place-items-center rounded-md text-muted transition-colors hover:bg-hover hover:text-ink"
    >
      <Icon name={ICON[theme]} />
    </button>
  );
}
