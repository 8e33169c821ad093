'use client';

import { useEffect, useState } from 'react';
import { Button } from './button.tsx';
import { Icon } from './icon.tsx';

/** Copies a text and says so for a moment. */
export function CopyButton({ text, label, compact = false }: { text: string; label: string; compact?: boolean }) {
  const [state, setState] = useState<'idle' | 'copied' | 'refused'>('idle');
  useEffect(() => {
    if (state === 'idle') return;
    const timer = setTimeout(() => setState('idle'), 1600);
    return () => clearTimeout(timer);
  }, [state]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setState('copied');
    } catch {
      // The clipboard is only there on localhost and https.
      setState('refused');
    }
  };
  const said = state === 'copied' ? 'Copied' : state === 'refused' ? 'The browser refused' : label;
  return (
    <Button look="quiet" size={compact ? 'icon' : 'md'} onClick={copy} aria-label={said} title={said}>
      <Icon name={state === 'copied' ? 'check' : 'copy'} className="size-3.5" />
      {compact ? null : <span aria-live="polite">{said}</span>}
    </Button>
  );
}
