/** The look a person chose; `system` follows the operating system. */
export type Theme = 'system' | 'light' | 'dark';

export const THEME_COOKIE = 'shard-studio-theme';

export function toTheme(value: string | undefined): Theme {
  return value === 'light' || value === 'dark' ? value : 'system';
}

/** Shows a theme at once and keeps it for a year. Charts hear of it by the attribute of <html>. */
export function applyTheme(theme: Theme): void {
  if (theme === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const age = theme === 'system' ? 0 : 31_536_000;
  // biome-ignore lint/suspicious/noDocumentCookie: CookieStore is not in every browser, and the server reads this one.
  document.cookie = `${THEME_COOKIE}=${theme}; path=/; max-age=${age}; samesite=strict`;
}
