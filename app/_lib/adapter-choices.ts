import type { Devices } from './api.ts';

export interface AdapterChoice {
  readonly value: string;
  readonly label: string;
}

/** What an adapter can be set to here; `current` too, when it is a name that nothing here has. */
export function adapterChoices(devices: Devices | undefined, current: unknown): AdapterChoice[] {
  const found = devices?.adapters ?? [];
  const choices = [
    { value: 'auto', label: found.length ? `auto: ${found[0].name}` : 'auto' },
    ...found.map(({ id, name, software }) => ({ value: id, label: software ? `${name} (software)` : name })),
    { value: 'software', label: 'software: any CPU adapter' },
    { value: 'interpreter', label: 'interpreter: plain TypeScript, no GPU' },
  ];
  const named = typeof current === 'string' && !choices.some(({ value }) => value === current);
  return named ? [...choices, { value: current, label: current }] : choices;
}
