/** The studio's icons: 16 px, one stroke, the colour of the text around. Decoration only: the words beside say it. */
const PATHS = {
  plus: 'M8 3v10M3 8h10',
  sun: 'M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6M8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9',
  moon: 'M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8Z',
  monitor: 'M2.5 3.5h11v7.5h-11zM6 13.5h4M8 11v2.5',
  chip: 'M4.5 4.5h7v7h-7zM6.5 2v2.5M9.5 2v2.5M6.5 11.5V14M9.5 11.5V14M2 6.5h2.5M2 9.5h2.5M11.5 6.5H14M11.5 9.5H14',
  download: 'M8 2.5v7.5M4.8 7.2 8 10.4l3.2-3.2M3 13.5h10',
  upload: 'M8 10.5V3M4.8 6.2 8 3l3.2 3.2M3 13.5h10',
  copy: 'M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3',
  check: 'M3 8.5 6.5 12 13 4.5',
  stop: 'M4.5 4.5h7v7h-7z',
  trash: 'M3 4.5h10M6 4.5v-2h4v2M4.5 4.5l.6 9h5.8l.6-9',
  clone: 'M6 2.5h7.5V10M10 6H2.5v7.5H10z',
  compare: 'M3 13.5v-5M7 13.5v-11M11 13.5v-7',
  alert: 'M8 2.2 14.3 13H1.7zM8 6.5v3M8 11.2v.2',
  info: 'M8 1.8a6.2 6.2 0 1 0 0 12.4A6.2 6.2 0 0 0 8 1.8M8 7.3v3.6M8 5v.2',
  bolt: 'M8.8 1.8 3.5 9h3.7l-.6 5.2L12.5 7H8.6z',
  chevron: 'M4.5 6.5 8 10l3.5-3.5',
  arrow: 'M3 8h10M9 4l4 4-4 4',
  close: 'M4 4l8 8M12 4l-8 8',
  reset: 'M3 8a5 5 0 1 0 1.6-3.7M3 2.8v2.7h2.7',
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, className = 'size-4' }: { name: IconName; className?: string }) {
  return (
    <svg viewBox="0 0 16 16" className={`shrink-0 ${className}`} aria-hidden="true" fill="none">
      <path d={PATHS[name]} stroke="currentColor" strokeWidth="1.4" strokeLinecap="round" strokeLinejoin="round" />
    </svg>
  );
}
