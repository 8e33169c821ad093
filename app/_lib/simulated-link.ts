import { valueAt } from './config-draft.ts';

/** The rate of the link that a config simulates between the rows of its mesh, in 10^9 bytes a second; null: none. */
export function simulatedLinkGBps(config: unknown): number | null {
  const rate = valueAt(config, 'strategy.linkGBps');
  return typeof rate === 'number' ? rate : null;
}

/** What stands beside every chart of such runs; null where no run has a simulated link. */
export function simulatedLinkNote(configs: readonly unknown[]): string | null {
  const rates = [...new Set(configs.map(simulatedLinkGBps))].filter((rate) => rate !== null);
  return rates.length ? `simulated link, ${rates.join(' and ')} GB/s` : null;
}
