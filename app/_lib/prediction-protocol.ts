import type { planExperiment } from '../../engine/schedule/plan.ts';
import type { AdapterProfile } from '../../engine/schedule/profile.ts';
import type { FittingSettings } from '../../engine/schedule/thriftier-settings.ts';
import type { HereVerdict, Place } from './fit-here.ts';
import type { LinkComparison } from './over-link.ts';

/** What the planner says of a config on an adapter. */
export type Plan = ReturnType<typeof planExperiment>;

/** One config to plan, under a name that the answer carries. */
export interface PlanJob {
  readonly key: string;
  /** As a person writes it: checked again where it is planned. */
  readonly config: unknown;
  readonly profile: AdapterProfile;
  /**
   * In place of its plan: which other settings would fit the config's memoryBudgetMiB, where it does not (`fitting`); whether
   * it fits `place`, and what would (`here`); what its simulated link costs it, and FULL_SHARD (`link`).
   */
  readonly wanted?: 'fitting' | 'here' | 'link';
  readonly place?: Place;
}

export interface PlanRequest {
  readonly id: number;
  readonly jobs: readonly PlanJob[];
}

export type PlanOutcome =
  | { readonly plan: Plan; readonly problem: null; readonly tookMs: number }
  | { readonly plan: null; readonly problem: null; readonly fitting: readonly FittingSettings[] }
  | { readonly plan: null; readonly problem: null; readonly here: HereVerdict }
  | { readonly plan: null; readonly problem: null; readonly link: LinkComparison | null }
  | { readonly plan: null; readonly problem: string };

export interface PlanAnswer {
  readonly id: number;
  readonly key: string;
  readonly outcome: PlanOutcome;
  /** Whether this was the request's last job. */
  readonly last: boolean;
}
