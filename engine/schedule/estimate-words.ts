import { type AdapterProfile, builtInProfiles } from './profile.ts';

/** A time in two digits, as an estimate has no more: in ms, from 10 s on in seconds, from 10 min on in minutes. */
export function timeWords(ms: number): string {
  const digits = (value: number) => Number(value.toPrecision(2)).toLocaleString('en', { maximumFractionDigits: 4 });
  if (ms < 0.001) return '0 ms';
  if (ms < 10_000) return `${digits(ms)} ms`;
  return ms < 600_000 ? `${digits(ms / 1000)} s` : `${digits(ms / 60_000)} min`;
}

/** Where the rates of an estimate are from. */
export function ratesWords(profile: AdapterProfile): string {
  if (profile.calibrated) return 'rates that were measured on this adapter';
  if (profile === builtInProfiles.h200) return 'rates that were measured on one H200';
  return 'built-in rates, not measured here (devices --calibrate measures them)';
}
