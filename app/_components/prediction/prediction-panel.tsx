'use client';

import type { ReactNode } from 'react';
import { RESOURCE_WORDS, RESOURCES } from '../../../engine/schedule/cost.ts';
import { CATEGORIES } from '../../../engine/schedule/schedule.ts';
import { type FittingSettings, saidSettings } from '../../../engine/schedule/thriftier-settings.ts';
import { CATEGORY_LOOKS } from '../../_lib/categories.ts';
import {
  formatBytes,
  formatCount,
  formatExactBytes,
  formatMs,
  formatRatio,
  formatShortCount,
} from '../../_lib/format.ts';
import type { Plan } from '../../_lib/prediction-protocol.ts';
import { whyFullShardHoldsMore, whyOffloadHoldsMore } from '../../_lib/strategy-notes.ts';
import type { Predictions } from '../../_lib/use-predictions.ts';
import { StackBar } from '../charts/stack-bar.tsx';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Dot } from '../ui/segmented.tsx';
import { LinkFigure } from './link-figure.tsx';
import { MemoryTimeline } from './memory-timeline.tsx';

const MIB = 2 ** 20;
const MOST_OFFERED = 3;

interface PricedStrategy {
  readonly key: string;
  readonly label: string;
  readonly current: boolean;
  readonly plan: Plan;
}

/** What the run will cost, as the engine's planner says while one types: peak, verdict, categories, timeline, strategies. */
export function PredictionPanel(props: {
  predictions: Predictions;
  /** The strategies priced beside the current config; `current` marks the one chosen. */
  strategies: readonly { key: string; label: string; current: boolean }[];
  budgetMiB: number | null;
  /** What the prediction is for, in words: "SwiftShader, this machine’s". */
  forWords: string;
  /** Stands below the head: chooses what it is for. */
  chooser: ReactNode;
  /** Where its rates are from. */
  rates: ReactNode;
  /** Whether it fits the machine that is here. */
  here: ReactNode;
  /** Whether what a rank keeps lies on the host: then its host memory is shown too. */
  offload: boolean;
  /** Why nothing can be predicted just now. */
  waitingFor: string | null;
  /** Takes a strategy of `strategies` for the run. */
  onChoose: (key: string) => void;
  /** Takes settings that the planner found to fit. */
  onFit: (settings: FittingSettings['settings']) => void;
}) {
  const outcome = props.predictions.outcomes.get('current');
  const plan = outcome?.plan ?? null;
  const priced = props.strategies.flatMap((strategy): PricedStrategy[] => {
    const of = props.predictions.outcomes.get(strategy.key)?.plan;
    return of ? [{ ...strategy, plan: of }] : [];
  });
  const budgetBytes = (props.budgetMiB ?? 0) * MIB;
  const fitting = priced
    .filter(({ current, plan: of }) => !current && of.peakBytes <= budgetBytes)
    .sort((a, b) => (a.plan.estimateMs ?? 0) - (b.plan.estimateMs ?? 0) || a.plan.peakBytes - b.plan.peakBytes);
  const asked = props.predictions.outcomes.get('fitting');
  const found = asked && 'fitting' in asked ? asked.fitting : [];
  const linked = props.predictions.outcomes.get('link');
  const overLink = linked && 'link' in linked ? linked.link : null;
  const chosen = props.strategies.find(({ current }) => current)?.label ?? '';
  const stale = props.waitingFor !== null || props.predictions.pending;
  return (
    <section id="prediction" aria-label="Predicted memory" className="panel scroll-mt-16 p-4 sm:p-5">
      <div className="flex flex-wrap items-center justify-between gap-x-3">
        <h2 className="font-semibold">Predicted memory of a rank</h2>
        <span className="text-xs text-faint" role="status">
          {props.waitingFor ??
            (props.predictions.pending
              ? 'planning…'
              : plan && outcome?.plan
                ? `planned in ${formatMs(outcome.tookMs)}`
                : '')}
        </span>
      </div>
      <p className="text-xs text-muted" data-testid="predicted-for">
        For {props.forWords}.
      </p>
      {props.chooser}
      {outcome && !plan && !props.waitingFor ? (
        <p role="alert" className="mt-3 flex gap-2 rounded-lg bg-warn-soft p-3 whitespace-pre-line">
          <Icon name="alert" className="mt-0.5 size-4 text-warn" />
          {outcome.problem}
        </p>
      ) : null}
      {plan ? (
        <div className={`transition-[filter] duration-200 ${stale ? 'saturate-[0.35]' : ''}`}>
          <Peak plan={plan} offload={props.offload} />
          {props.rates}
          {props.here}
          {overLink ? <LinkFigure comparison={overLink} label={chosen} /> : null}
          <Verdict
            plan={plan}
            budgetMiB={props.budgetMiB}
            fitting={fitting}
            onChoose={props.onChoose}
            found={found}
            onFit={props.onFit}
          />
          <Categories plan={plan} />
          <div className="mt-5">
            <MemoryTimeline
              plan={plan}
              title="Over one step"
              budgetBytes={props.budgetMiB && props.budgetMiB * MIB}
              heightPx={206}
              lanes
            />
          </div>
          <Strategies priced={priced} budgetMiB={props.budgetMiB} />
        </div>
      ) : outcome ? null : (
        <div className="mt-4 h-80 rounded-lg bg-sunken motion-safe:animate-[pulse-dot_2s_ease-in-out_infinite]" />
      )}
      <p className="mt-3 text-xs text-faint">
        Planned in this browser from the run’s schedule. Reserved: what the rank’s buffers hold. Live: what its tensors
        need.
      </p>
    </section>
  );
}

function Peak({ plan, offload }: { plan: Plan; offload: boolean }) {
  const facts = [
    ['live', formatBytes(plan.liveBytes), formatExactBytes(plan.liveBytes)],
    ['parameters', formatShortCount(plan.params), formatCount(plan.params)],
    ['ranks', String(plan.world), ''],
    ...(offload
      ? [['host', formatBytes(plan.hostBytes), `${formatExactBytes(plan.hostBytes)} of host memory a rank`]]
      : []),
    ...(plan.estimateMs === null ? [] : [['step', `≈ ${formatMs(plan.estimateMs)}`, estimateTitle(plan)]]),
    ['bound by', RESOURCE_WORDS[plan.boundBy], estimateTitle(plan)],
    ...(plan.validation
      ? [['validation', `≈ ${formatMs(plan.validation.estimateMs)}`, validationTitle(plan.validation)]]
      : []),
  ];
  return (
    <div className="mt-3 flex flex-wrap items-end justify-between gap-x-6 gap-y-2">
      <p title={formatExactBytes(plan.peakBytes)} data-testid="predicted-peak" data-bytes={plan.peakBytes}>
        <span className="text-3xl/9 font-semibold tracking-tight">{formatBytes(plan.peakBytes)}</span>
        <span className="ml-1.5 text-muted">reserved at peak</span>
      </p>
      <dl className="flex flex-wrap gap-x-4 gap-y-1">
        {facts.map(([name, value, title]) => (
          <div key={name} title={title || undefined}>
            <dt className="caps">{name}</dt>
            <dd className="font-medium whitespace-nowrap">{value}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}

function validationTitle({ liveBytes }: NonNullable<Plan['validation']>): string {
  return `each held-out batch; live at most ${formatBytes(liveBytes)}`;
}

/** What a step's time goes into. */
function estimateTitle({ estimateSplitMs }: Plan): string {
  const parts = RESOURCES.filter((resource) => resource !== 'link' || estimateSplitMs.link > 0);
  return parts.map((resource) => `${RESOURCE_WORDS[resource]} ${formatMs(estimateSplitMs[resource])}`).join(', ');
}

function Verdict(props: {
  plan: Plan;
  budgetMiB: number | null;
  /** Strategies under which the run would fit, the one whose step takes least time first. */
  fitting: readonly PricedStrategy[];
  onChoose: (key: string) => void;
  /** What else the planner tried and found to fit: recomputed blocks, smaller batches. */
  found: readonly FittingSettings[];
  onFit: (settings: FittingSettings['settings']) => void;
}) {
  const { plan, budgetMiB, fitting, found } = props;
  if (budgetMiB === null) return null;
  const budgetBytes = budgetMiB * MIB;
  const left = budgetBytes - plan.peakBytes;
  const fits = left >= 0;
  const share = (plan.peakBytes / budgetBytes) * 100;
  return (
    <div
      role="status"
      data-testid="budget-verdict"
      className={`mt-3 rounded-lg p-3 ${fits ? 'bg-good-soft' : 'bg-bad-soft'}`}
    >
      <p className={`flex items-center gap-2 font-medium ${fits ? 'text-good' : 'text-bad'}`}>
        <Icon name={fits ? 'check' : 'alert'} />
        {fits
          ? `Fits the budget of ${formatBytes(budgetBytes)}: ${formatBytes(left)} to spare`
          : `Over the budget of ${formatBytes(budgetBytes)} by ${formatBytes(-left)}`}
      </p>
      <svg
        role="img"
        aria-label={`${Math.round(share)} % of the budget`}
        className="mt-2 block h-1.5 w-full overflow-hidden rounded-full"
      >
        <rect width="100%" height="100%" fill="var(--line-strong)" opacity="0.5" />
        <rect width={`${Math.min(100, share)}%`} height="100%" fill={fits ? 'var(--good)' : 'var(--bad)'} />
      </svg>
      {fits ? null : fitting.length ? (
        <ul className="mt-2 space-y-1.5">
          {fitting.slice(0, MOST_OFFERED).map(({ key, label, plan: of }, i) => (
            <Offer key={key} button={`Use ${label}`} onUse={() => props.onChoose(key)}>
              {label} would fit{i === 0 && fitting.length > 1 ? ' at the least time' : ''}: {formatBytes(of.peakBytes)}
              {of.estimateMs === null ? '' : `, a step ≈ ${formatMs(of.estimateMs)}`}
            </Offer>
          ))}
        </ul>
      ) : found.length ? (
        <ul className="mt-2">
          <Offer button="Use these" onUse={() => props.onFit(found[0].settings)}>
            With {saidSettings(found[0].settings)} it would fit, with {formatBytes(found[0].peakBytes)}.
          </Offer>
        </ul>
      ) : (
        <p className="mt-2 text-muted">
          No strategy and no batch size that was tried fits, and the run would fail before its first step. Shard it over
          more ranks, make the model smaller, or raise the budget.
        </p>
      )}
    </div>
  );
}

function Offer(props: { button: string; onUse: () => void; children: ReactNode }) {
  return (
    <li className="flex flex-wrap items-center justify-between gap-2 text-xs text-muted">
      <span className="min-w-0 flex-1">{props.children}</span>
      <Button onClick={props.onUse}>{props.button}</Button>
    </li>
  );
}

function Categories({ plan }: { plan: Plan }) {
  const bytes = CATEGORIES.map((category) => plan.byCategory[category]);
  return (
    <div className="mt-4">
      <StackBar
        label={`Live memory by category: ${CATEGORIES.map((c, i) => `${c} ${formatBytes(bytes[i])}`).join(', ')}`}
        byCategory={bytes}
        reservedBytes={plan.peakBytes}
        ofBytes={plan.peakBytes}
      />
      <table aria-label="Live memory by category at the fullest step" className="mt-2 w-full">
        <tbody>
          {CATEGORY_LOOKS.map(({ category, colour, about }, i) => (
            <tr key={category} title={about} className={bytes[i] ? '' : 'text-faint'}>
              <th scope="row" className="py-[3px] text-left font-normal">
                <span className="flex items-center gap-2">
                  <Dot colour={colour} square />
                  {category}
                </span>
              </th>
              <td className="text-right text-xs text-faint">
                {plan.liveBytes ? `${((bytes[i] / plan.liveBytes) * 100).toFixed(bytes[i] ? 1 : 0)} %` : ''}
              </td>
              <td className="w-24 text-right font-medium" title={formatExactBytes(bytes[i])}>
                {formatBytes(bytes[i])}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Strategies({ priced, budgetMiB }: { priced: readonly PricedStrategy[]; budgetMiB: number | null }) {
  if (priced.length < 2) return null;
  const most = Math.max(...priced.map(({ plan }) => plan.peakBytes));
  const planOf = (wanted: string) => priced.find(({ label }) => label === wanted)?.plan;
  const [fullShard, shardGradOp] = [planOf('FULL_SHARD'), planOf('SHARD_GRAD_OP')];
  const whyMore = fullShard && shardGradOp ? whyFullShardHoldsMore(fullShard, shardGradOp) : null;
  const offloaded = planOf('FULL_SHARD, CPU offload');
  const notes: Record<string, string | null> = {
    FULL_SHARD: whyMore,
    'FULL_SHARD, CPU offload': fullShard && offloaded ? whyOffloadHoldsMore(offloaded, fullShard) : null,
  };
  return (
    <div className="mt-5">
      <h3 className="font-semibold">
        The same run under each strategy{' '}
        <span className="font-normal text-faint">memory of a rank, time of a step</span>
      </h3>
      <ul className="mt-2 space-y-2">
        {priced.map(({ key, label, current, plan }) => {
          const over = budgetMiB !== null && plan.peakBytes > budgetMiB * MIB;
          return (
            <li key={key}>
              <div className="mb-1 flex items-baseline justify-between gap-2 text-xs">
                <span className={current ? 'font-semibold' : 'text-muted'}>
                  <span className="font-mono">{label}</span>
                  {current ? ' · this run' : ''}
                </span>
                <span>
                  {over ? <span className="mr-2 text-bad">over budget</span> : null}
                  <span className="font-medium">{formatBytes(plan.peakBytes)}</span>
                  <span className="ml-2 text-faint">{formatRatio(plan.peakBytes, priced[0].plan.peakBytes)}</span>
                  {plan.estimateMs === null ? null : (
                    <span className="ml-2 inline-block min-w-16 text-right text-muted">
                      ≈ {formatMs(plan.estimateMs)}
                    </span>
                  )}
                </span>
              </div>
              <StackBar
                label={`${label}: ${formatBytes(plan.peakBytes)} reserved`}
                byCategory={CATEGORIES.map((category) => plan.byCategory[category])}
                reservedBytes={plan.peakBytes}
                ofBytes={most}
              />
              {notes[label] ? <p className="mt-1 text-xs text-faint">{notes[label]}</p> : null}
            </li>
          );
        })}
      </ul>
    </div>
  );
}
