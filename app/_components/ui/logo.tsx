/** The mark: one block, cut into shards that still fit together. The same drawing as public/logo.svg. */
export function Logo({ className = 'size-6' }: { className?: string }) {
  return (
    <svg viewBox="0 0 32 32" className={`shrink-0 ${className}`} aria-hidden="true">
      <path d="M15 2.6 3.6 9.2l4.9 2.9L15 8.3z" fill="#8fa3ff" />
      <path d="M17 2.6 28.4 9.2l-4.9 2.9L17 8.3z" fill="#6d86ff" />
      <path d="M2.6 11v12l5-2.9v-6.2z" fill="#4f6af0" />
      <path d="M29.4 11v12l-5-2.9v-6.2z" fill="#3f53c8" />
      <path d="M3.6 24.8 15 31.4v-5.7l-6.5-3.8z" fill="#22b3c7" transform="translate(0 -1.6)" />
      <path d="M28.4 24.8 17 31.4v-5.7l6.5-3.8z" fill="#8a63e6" transform="translate(0 -1.6)" />
      <path d="m16 11 4.6 2.7v5.3L16 21.7 11.400 19v-5.3z" fill="#f0a732" />
    </svg>
  );
}
