'use client';

import { useMutation, useQuery } from '@tanstack/react-query';
import { useRouter } from 'next/navigation';
import { Fragment, type ReactNode, useDeferredValue, useMemo, useState } from 'react';
import { checkConfig } from '../../../engine/config.ts';
import { configHints } from '../../../engine/config-hints.ts';
import { builtInProfiles } from '../../../engine/schedule/profile.ts';
import { withSettings } from '../../../engine/schedule/thriftier-settings.ts';
import { type AdapterChoice, adapterChoices } from '../../_lib/adapter-choices.ts';
import { adapterHint, deviceFor, placeFor, profileFor } from '../../_lib/adapter-profile.ts';
import { ApiError, createRun, type Devices, getCorpus, listDevices } from '../../_lib/api.ts';
import {
  type Draft,
  problemsOf,
  same,
  toDraft,
  valueAt,
  withChange,
  withKind,
  withoutDefaults,
  withValue,
} from '../../_lib/config-draft.ts';
import { belongsTo, FIELD_GROUPS, type FieldGroup } from '../../_lib/config-fields.ts';
import type { Place } from '../../_lib/fit-here.ts';
import { formatBytes, formatCount } from '../../_lib/format.ts';
import { PRESETS, type Preset } from '../../_lib/presets.ts';
import { comparableStrategies } from '../../_lib/priced-strategies.ts';
import { simulatedLinkNote } from '../../_lib/simulated-link.ts';
import { usePredictions } from '../../_lib/use-predictions.ts';
import { ChartNote } from '../charts/chart-note.tsx';
import { HereVerdictView } from '../prediction/here-verdict.tsx';
import { PredictionPanel } from '../prediction/prediction-panel.tsx';
import { RatesNote } from '../prediction/rates-note.tsx';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Notice } from '../ui/notice.tsx';
import { Segmented } from '../ui/segmented.tsx';
import { ConfigField } from './field.tsx';
import { chipClass, SizeChips } from './size-chips.tsx';
import { YamlEditor } from './yaml-editor.tsx';

/** Changing these changes which fields a section has. */
const KINDS = new Set(['model.kind', 'data.kind', 'optimizer.kind', 'strategy.kind']);

/** A new run: every field, the config as YAML, and what it will cost, while one types. */
export function NewRunPage({ initial, from }: { initial: unknown; from: string | null }) {
  const router = useRouter();
  const [draft, setDraft] = useState<Draft>(() => toDraft(initial));
  const [view, setView] = useState<'form' | 'yaml'>('form');
  const [planFor, setPlanFor] = useState<'adapter' | 'h200'>('adapter');
  const [preset, setPreset] = useState<string | null>(from ? null : PRESETS[0].id);
  const [yamlProblem, setYamlProblem] = useState<string | null>(null);
  const devices = useQuery({
    queryKey: ['devices'],
    queryFn: ({ signal }) => listDevices(signal),
    staleTime: 60_000,
    // Rates that are being measured are there in a moment.
    refetchInterval: ({ state }) =>
      state.data?.adapters.some(({ calibration }) => /waiting|measuring/.test(calibration.state)) ? 1500 : 15_000,
  });
  const create = useMutation({
    mutationFn: () => createRun(withoutDefaults(draft)),
    onSuccess: ({ id }) => router.push(`/runs/${encodeURIComponent(id)}`),
  });

  const change = (next: Draft) => {
    setDraft(next);
    setPreset(null);
    if (!create.isPending) create.reset();
  };
  const setField = (path: string, value: unknown) =>
    change(KINDS.has(path) ? withKind(draft, path.split('.')[0], String(value)) : withChange(draft, path, value));
  const choosePreset = (chosen: Preset) => {
    change(toDraft(chosen.config));
    setPreset(chosen.id);
    setPlanFor(chosen.planFor ?? 'adapter');
    setYamlProblem(null);
  };

  const prediction = usePlannedDraft(draft, devices.data, planFor);
  const problems = useProblems(draft, create.error, prediction);
  const hints = useMemo(() => hintsOf(draft, devices.data), [draft, devices.data]);
  const shownPaths = new Set(
    FIELD_GROUPS.flatMap(({ fields }) => fields.filter((f) => belongsTo(f, draft)).map(({ path }) => path)),
  );
  const elsewhere = [...problems].filter(([path]) => !shownPaths.has(path));
  const asked = prediction.predictions.outcomes.get('here');
  const here = asked && 'here' in asked ? asked.here : null;
  const unfit = here !== null && (here.lacks !== null || here.refused !== null);
  const peak = prediction.predictions.outcomes.get('current')?.plan?.peakBytes;
  const { budgetMiB, waitingFor } = prediction.panel;
  const isOver = budgetMiB !== null && peak !== undefined && peak > budgetMiB * 2 ** 20;
  // The run itself refuses what its own adapter's plan has over the budget. Another adapter's plan, or one of a draft that
  // has changed since, says nothing of it.
  const isRefused = isOver && planFor === 'adapter' && waitingFor === null && !prediction.predictions.pending;
  const ready = !problems.size && !yamlProblem && !isRefused;
  const notReady = toFix(problems.size) || (isRefused ? OVER_BUDGET : '');

  return (
    <form
      noValidate
      onSubmit={(event) => {
        event.preventDefault();
        if (ready && !create.isPending) create.mutate();
      }}
    >
      <div className="mb-4 flex flex-wrap items-center gap-3">
        <h1 className="text-lg font-semibold tracking-tight">{from ? `New run, from ${from}` : 'New run'}</h1>
        <div className="ml-auto flex items-center gap-2">
          <span role="status" className="text-bad max-lg:hidden">
            {notReady}
          </span>
          <Segmented
            label="Edit as"
            segments={[
              { value: 'form', label: 'Form' },
              { value: 'yaml', label: 'YAML' },
            ]}
            value={view}
            onChange={setView}
          />
          <Button type="submit" look="primary" disabled={!ready || create.isPending} className="max-lg:hidden">
            {create.isPending ? 'Starting…' : 'Start run'}
          </Button>
        </div>
      </div>
      <fieldset className="mb-4 flex flex-wrap items-center gap-1.5" aria-label="Presets">
        <span className="caps mr-1">Start from</span>
        {PRESETS.map((one) => (
          <button
            key={one.id}
            type="button"
            title={one.about}
            aria-pressed={preset === one.id}
            onClick={() => choosePreset(one)}
            className={chipClass}
          >
            {one.label}
          </button>
        ))}
      </fieldset>
      <div className="grid grid-cols-[minmax(0,1fr)] items-start gap-4 lg:grid-cols-[minmax(0,1fr)_minmax(380px,460px)]">
        <div className="min-w-0 space-y-4">
          {create.error ? (
            <Notice tone="bad" title="The run was not started">
              {create.error.message}
            </Notice>
          ) : null}
          {elsewhere.length ? (
            <Notice tone="warn" title="Not in the form">
              {elsewhere.map(([path, message]) => (path ? `${path}: ${message}` : message)).join('\n')}
            </Notice>
          ) : null}
          {view === 'yaml' ? (
            <YamlEditor
              draft={draft}
              problem={yamlProblem}
              onProblem={setYamlProblem}
              onChange={change}
              problems={problems}
            />
          ) : (
            FIELD_GROUPS.map((group) => (
              <Group
                key={group.id}
                group={group}
                draft={draft}
                problems={problems}
                hints={hints}
                adapters={adapterChoices(devices.data, valueAt(draft, 'adapter'))}
                onChange={setField}
                afterFirst={group.id === 'model' ? <SizeChips draft={draft} onChange={change} /> : null}
                note={group.id === 'data' ? prediction.corpusNote : null}
              />
            ))
          )}
        </div>
        <aside className="lg:sticky lg:top-16 lg:max-h-[calc(100dvh-5rem)] lg:overflow-y-auto lg:pr-1 lg:pb-2">
          <ChartNote value={simulatedLinkNote([draft])}>
            <PredictionPanel
              {...prediction.panel}
              onFit={(settings) => {
                const { config } = checkConfig(draft);
                const fitting = config && withSettings(config, settings);
                if (fitting) change(toDraft({ ...draft, strategy: fitting.strategy, data: fitting.data }));
              }}
              onChoose={(key) => {
                const strategy = prediction.strategies.find((one) => one.key === key)?.strategy;
                if (strategy) change(toDraft({ ...draft, strategy }));
              }}
              chooser={
                <div className="mt-2">
                  <Segmented
                    label="Predict for"
                    segments={[
                      { value: 'adapter', label: 'this machine', hint: 'the adapter that the run would take here' },
                      { value: 'h200', label: 'NVIDIA H200', hint: 'as if the run were on one' },
                    ]}
                    value={planFor}
                    onChange={setPlanFor}
                  />
                </div>
              }
              rates={
                <RatesNote
                  calibrated={prediction.calibrated}
                  device={planFor === 'h200' ? null : prediction.device}
                  isElsewhere={planFor === 'h200'}
                />
              }
              here={
                here && prediction.place ? (
                  <HereVerdictView
                    verdict={here}
                    adapterName={prediction.place.profile.name}
                    ranks={Number(valueAt(draft, 'devices'))}
                    steps={Number(valueAt(draft, 'trainer.steps'))}
                    isElsewhere={planFor === 'h200'}
                    isOverBudget={isOver}
                    onUse={(changes) => {
                      change(Object.entries(changes).reduce<Draft>((at, [path, to]) => withValue(at, path, to), draft));
                      setPlanFor('adapter');
                    }}
                  />
                ) : null
              }
            />
          </ChartNote>
        </aside>
      </div>
      <div className="fixed inset-x-0 bottom-0 z-20 flex items-center gap-3 border-t border-line bg-panel/95 px-4 py-2.5 backdrop-blur lg:hidden">
        <a href="#prediction" className="min-w-0 flex-1 truncate py-1">
          <span className="font-semibold">{peak === undefined ? '…' : formatBytes(peak)}</span>
          <span className={unfit || notReady ? 'text-bad' : 'text-muted'}>
            {' '}
            {notReady || (unfit ? 'does not fit here' : 'a rank, predicted')}
          </span>
        </a>
        <Button type="submit" look="primary" disabled={!ready || create.isPending}>
          {create.isPending ? 'Starting…' : 'Start run'}
        </Button>
      </div>
    </form>
  );
}

function Group(props: {
  group: FieldGroup;
  draft: Draft;
  problems: ReadonlyMap<string, string>;
  hints: ReadonlyMap<string, string>;
  adapters: readonly AdapterChoice[];
  onChange: (path: string, value: unknown) => void;
  /** Stands below the group's first field. */
  afterFirst: ReactNode;
  note: string | null;
}) {
  const { group, draft, problems } = props;
  const fields = group.fields.filter((field) => belongsTo(field, draft));
  if (!fields.length) return null;
  return (
    <fieldset className="panel min-w-0 p-4 sm:p-5" data-testid={`group-${group.id}`}>
      <legend className="sr-only">{group.title}</legend>
      <div className="mb-3.5 flex flex-wrap items-baseline gap-x-2.5">
        <h2 className="font-semibold">{group.title}</h2>
        <p className="text-xs text-faint">{group.about}</p>
      </div>
      <div className="grid gap-x-4 gap-y-4 sm:grid-cols-2 xl:grid-cols-3">
        {fields.map((field, i) => (
          <Fragment key={field.path}>
            <ConfigField
              field={field}
              value={valueAt(draft, field.path)}
              problem={problems.get(field.path) ?? null}
              hint={props.hints.get(field.path) ?? null}
              adapters={props.adapters}
              ranks={Number(valueAt(draft, 'devices'))}
              onChange={(value) => props.onChange(field.path, value)}
            />
            {i === 0 ? props.afterFirst : null}
          </Fragment>
        ))}
      </div>
      {props.note ? (
        <p role="status" className="mt-3.5 flex items-center gap-1.5 text-xs text-muted">
          <Icon name="info" className="size-3.5" />
          {props.note}
        </p>
      ) : null}
    </fieldset>
  );
}

/**
 * What is wrong, by dotted path: what the engine's own check says, what the server answered to this very draft, a
 * vocabulary that the data exceed, and what only the planner knows, since it has the model: a class that is none of its.
 */
function useProblems(
  draft: Draft,
  error: Error | null,
  { dataVocabSize, predictions }: Pick<ReturnType<typeof usePlannedDraft>, 'dataVocabSize' | 'predictions'>,
): ReadonlyMap<string, string> {
  const unplanned = predictions.outcomes.get('current')?.problem ?? null;
  return useMemo(() => {
    const found = new Map<string, string>();
    const told = [...problemsOf(draft), ...(error instanceof ApiError ? error.problems : [])];
    for (const { path, message } of told) {
      // A problem of a list's entry is shown at the list.
      const at = path.replace(/\.\d+(\..*)?$/, '');
      if (!found.has(at)) found.set(at, valueAt(draft, at) === '' ? 'needs a value' : message);
    }
    const words = valueAt(draft, 'model.vocabSize');
    if (typeof words === 'number' && dataVocabSize !== null && words < dataVocabSize && !found.has('model.vocabSize'))
      found.set(
        'model.vocabSize',
        `${words} is fewer than the data’s ${dataVocabSize}: set so many or more, or leave it out`,
      );
    const [, at, said] = /^(\w+\.\w+): (.*)$/s.exec(unplanned ?? '') ?? [];
    if (at && said && !found.has(at)) found.set(at, said);
    return found;
  }, [draft, error, dataVocabSize, unplanned]);
}

/** What is legal and may not be meant, by dotted path. */
function hintsOf(draft: Draft, devices: Devices | undefined): ReadonlyMap<string, string> {
  const { config } = checkConfig(draft);
  const hints = new Map(config ? configHints(config).map(({ path, message }) => [path, message]) : []);
  const unserved = adapterHint(valueAt(draft, 'adapter'), devices);
  if (unserved) hints.set('adapter', unserved);
  return hints;
}

/** Why a run cannot be started that the panel says would fail. */
const OVER_BUDGET = 'over its memory budget';

const toFix = (count: number) => (count ? `${count} ${count === 1 ? 'field' : 'fields'} to fix` : '');

/** The corpus behind the draft, the planner's jobs, and the panel's words. */
function usePlannedDraft(draft: Draft, devices: Devices | undefined, planFor: 'adapter' | 'h200') {
  const settled = useDeferredValue(draft);
  const data = (settled.data ?? {}) as Record<string, unknown>;
  const path = typeof data.path === 'string' && data.path ? data.path : null;
  const blockSize = typeof data.blockSize === 'number' ? data.blockSize : 35;
  const kind = String(data.kind);
  const tokenizer = typeof data.tokenizer === 'string' ? data.tokenizer : 'word';
  const corpus = useQuery({
    queryKey: ['corpus', kind, path, blockSize, tokenizer],
    queryFn: ({ signal }) => getCorpus({ kind, path, blockSize, tokenizer }, signal),
    staleTime: Number.POSITIVE_INFINITY,
    retry: false,
    enabled: kind === 'moby-dick' || (kind === 'wikitext2' && path !== null),
  });
  const needsVocabulary = valueAt(settled, 'model.vocabSize') === null;
  const vocabSize = corpus.data?.vocabSize ?? null;
  const adapter = valueAt(settled, 'adapter');
  const profile = planFor === 'h200' ? builtInProfiles.h200 : profileFor(adapter, devices);
  const place = roundedPlace(placeFor(adapter, devices));

  const legal = useMemo(() => checkConfig(settled).problems.length === 0, [settled]);
  const planned = needsVocabulary && vocabSize !== null ? withValue(settled, 'model.vocabSize', vocabSize) : settled;
  const budgetMiB = valueAt(settled, 'memoryBudgetMiB');
  const budget = typeof budgetMiB === 'number' && budgetMiB > 0 ? budgetMiB : null;
  // A budget that is too small is the panel's to say: the plan itself is wanted anyway.
  const config = withValue(planned, 'memoryBudgetMiB', null);
  const strategies = comparableStrategies(settled).map(({ label, strategy }) => {
    const current = same(strategy, settled.strategy);
    return { key: current ? 'current' : `as ${label}`, label, current, strategy };
  });
  const jobs =
    legal && kind !== 'batches' && (!needsVocabulary || vocabSize !== null)
      ? [
          { key: 'current', config, profile },
          ...strategies
            .filter(({ current }) => !current)
            .map(({ key, strategy }) => ({ key, config: { ...config, strategy }, profile })),
          ...(budget === null ? [] : [{ key: 'fitting', config: planned, profile, wanted: 'fitting' as const }]),
          ...(place ? [{ key: 'here', config, profile, wanted: 'here' as const, place }] : []),
          // Also where there is no link: what is asked for no more must not stay.
          { key: 'link', config, profile, wanted: 'link' as const },
        ]
      : null;
  const predictions = usePredictions(jobs);

  const waitingFor = !legal
    ? 'fix what is marked to predict'
    : kind === 'batches'
      ? 'a batches file has its own shapes: the run’s page has the prediction'
      : needsVocabulary && vocabSize === null
        ? corpus.error
          ? 'no vocabulary'
          : corpus.isFetching
            ? 'preparing the data for its vocabulary…'
            : 'waits for the data'
        : null;
  const corpusNote = corpus.error
    ? corpus.error.message
    : corpus.data
      ? `${formatCount(corpus.data.tokens)} tokens, a vocabulary of ${formatCount(corpus.data.vocabSize)}, ${formatCount(corpus.data.samples)} samples`
      : corpus.isFetching
        ? 'Preparing the data…'
        : null;
  return {
    predictions,
    strategies,
    corpusNote,
    dataVocabSize: vocabSize,
    place,
    device: deviceFor(adapter, devices),
    calibrated: profile.calibrated === true,
    panel: {
      predictions,
      strategies,
      budgetMiB: budget,
      forWords: planFor === 'h200' ? h200Words(devices) : hereWords(adapter, devices),
      offload: valueAt(settled, 'strategy.cpuOffload') === true,
      waitingFor,
    },
  };
}

/** What a prediction for the adapter of the draft is for, in words. */
function hereWords(adapter: unknown, devices: Devices | undefined): string {
  if (adapter === 'interpreter') return 'the interpreter, on this machine';
  const device = deviceFor(adapter, devices);
  if (!device) return devices ? 'a software adapter: this machine has none that this setting names' : 'this machine';
  return `${device.name}, which this run would take here`;
}

function h200Words(devices: Devices | undefined): string {
  const isHere = devices?.adapters.some(({ name }) => name.includes('H200'));
  return `an NVIDIA H200${isHere ? '' : ', which this machine does not have'}`;
}

/** Free memory moves all the time: to the nearest 256 MiB below, so that it is not planned anew for nothing. */
function roundedPlace(place: Place | null): Place | null {
  const grain = 2 ** 28;
  return place && { ...place, freeHostBytes: Math.floor(place.freeHostBytes / grain) * grain };
}
