'use client';

import { useEffect, useState } from 'react';

/** Grows whenever the look changes, by the toggle or by the system: a canvas has to be drawn again. */
export function useLookVersion(): number {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    const changed = () => setVersion((before) => before + 1);
    const observer = new MutationObserver(changed);
    observer.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] });
    const dark = matchMedia('(prefers-color-scheme: dark)');
    dark.addEventListener('change', changed);
    return () => {
      observer.disconnect();
      dark.removeEventListener('change', changed);
    };
  }, []);
  return version;
}

/** A CSS colour, variables and all, as a canvas can use it, where `element` stands. */
export function resolveColour(element: HTMLElement, colour: string): string {
  const probe = document.createElement('span');
  probe.hidden = true;
  probe.style.color = colour;
  element.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}
