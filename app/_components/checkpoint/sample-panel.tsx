'use client';

import { useQuery } from '@tanstack/react-query';
import { type ReactNode, useId, useState } from 'react';
import { adapterChoices } from '../../_lib/adapter-choices.ts';
import { listDevices } from '../../_lib/api.ts';
import type { CheckpointRef } from '../../_lib/checkpoint-ref.ts';
import { valueAt } from '../../_lib/config-draft.ts';
import { formatCount } from '../../_lib/format.ts';
import { type SamplingState, useSampling } from '../../_lib/use-sampling.ts';
import { Button } from '../ui/button.tsx';
import { Notice } from '../ui/notice.tsx';
import { ScrollRegion } from '../ui/scroll-region.tsx';
import { Segmented } from '../ui/segmented.tsx';

/** Models that predict what they have not read. */
const CONTINUING = ['gpt2', 'llama'];

/** Lets the checkpoint's model continue a text, or token ids where no text belongs to its data. */
export function SamplePanel({ checkpoint, config }: { checkpoint: CheckpointRef; config: unknown }) {
  const kind = valueAt(config, 'model.kind');
  return (
    <section className="panel min-w-0 p-4 sm:p-5" aria-label="Sample a text">
      <h2 className="font-semibold">Sample a text</h2>
      {CONTINUING.includes(String(kind)) ? (
        <SampleForm checkpoint={checkpoint} config={config} />
      ) : (
        <p className="mt-1 text-muted">
          {kind === undefined
            ? 'Not with this one: it does not say what model it holds. Checkpoints that a run of a studio wrote do.'
            : 'Not with the demo Transformer: it reads the targets that it should predict. Checkpoints of GPT-2 and Llama can.'}
        </p>
      )}
    </section>
  );
}

/** What was typed, as text, so that a number half typed stays as it is. */
interface Typed {
  readonly count: string;
  readonly temperature: string;
  readonly topK: string;
  readonly seed: string;
}

function SampleForm({ checkpoint, config }: { checkpoint: CheckpointRef; config: unknown }) {
  const hasWords = valueAt(config, 'data.kind') !== 'batches';
  const usesGpt2Tokens = valueAt(config, 'data.tokenizer') === 'gpt2';
  const [form, setForm] = useState<'text' | 'ids'>(hasWords ? 'text' : 'ids');
  const [prompt, setPrompt] = useState(valueAt(config, 'data.kind') === 'moby-dick' ? 'Call me Ishmael.' : '');
  const [ids, setIds] = useState(hasWords ? '' : '0');
  const [typed, setTyped] = useState<Typed>({ count: '40', temperature: '0.8', topK: '40', seed: '0' });
  const [adapter, setAdapter] = useState('interpreter');
  const devices = useQuery({ queryKey: ['devices'], queryFn: ({ signal }) => listDevices(signal), staleTime: 60_000 });
  const { state, start, cancel } = useSampling(checkpoint);
  const problems = problemsOf(typed, form === 'ids' ? ids : null);
  const ready = !Object.values(problems).some(Boolean) && (form === 'text' ? prompt : ids).trim() !== '';
  const id = useId();
  const number = (key: keyof Typed, label: string, more: { none?: string; help: string }) => (
    <Labelled id={`${id}-${key}`} label={label} problem={problems[key] ?? null} help={more.help}>
      <input
        id={`${id}-${key}`}
        aria-describedby={`${id}-${key}-note`}
        aria-invalid={problems[key] ? true : undefined}
        inputMode={key === 'temperature' ? 'decimal' : 'numeric'}
        className="field-box"
        value={typed[key]}
        placeholder={more.none}
        autoComplete="off"
        onChange={(e) => setTyped({ ...typed, [key]: e.target.value })}
      />
    </Labelled>
  );
  return (
    <form
      noValidate
      className="mt-3 grid gap-4 lg:grid-cols-2"
      onSubmit={(event) => {
        event.preventDefault();
        if (!ready || state?.going) return;
        void start({
          prompt: form === 'text' ? prompt : null,
          tokens: form === 'ids' ? idsOf(ids) : null,
          count: Number(typed.count),
          temperature: Number(typed.temperature),
          topK: typed.topK.trim() === '' ? null : Number(typed.topK),
          seed: Number(typed.seed),
          adapter,
        });
      }}
    >
      <div className="min-w-0 space-y-3">
        <div>
          <div className="mb-1 flex flex-wrap items-center justify-between gap-2">
            <label htmlFor={`${id}-prompt`} className="font-medium">
              {form === 'text' ? 'Prompt' : 'Token ids'}
            </label>
            {hasWords ? (
              <Segmented
                label="Prompt as"
                segments={[
                  { value: 'text', label: 'Text' },
                  { value: 'ids', label: 'Token ids' },
                ]}
                value={form}
                onChange={setForm}
              />
            ) : null}
          </div>
          <textarea
            id={`${id}-prompt`}
            aria-describedby={`${id}-prompt-note`}
            aria-invalid={problems.ids ? true : undefined}
            rows={3}
            className={`field-box resize-y ${form === 'ids' ? 'font-mono' : ''}`}
            value={form === 'text' ? prompt : ids}
            spellCheck={false}
            onChange={(e) => (form === 'text' ? setPrompt : setIds)(e.target.value)}
          />
          <p id={`${id}-prompt-note`} className={`mt-1 text-xs ${problems.ids ? 'text-bad' : 'text-faint'}`}>
            {problems.ids ??
              (form === 'ids'
                ? hasWords
                  ? 'With blanks or commas between them.'
                  : 'A batches file has no words: ids with blanks or commas between them.'
                : usesGpt2Tokens
                  ? 'Any text, in GPT-2’s tokens.'
                  : 'In words of the run’s text, as they stand there between blanks: “Ishmael.” with its full stop is one.')}
          </p>
        </div>
        <div className="grid grid-cols-2 gap-3 sm:grid-cols-4">
          {number('count', 'Tokens', { help: 'to add' })}
          {number('temperature', 'Temperature', { help: '0: the likeliest' })}
          {number('topK', 'Top k', { none: 'all', help: 'likeliest ones' })}
          {number('seed', 'Seed', { help: 'same seed, same text' })}
        </div>
        <Labelled id={`${id}-adapter`} label="Computed by" problem={null} help="A large model wants a GPU.">
          <select
            id={`${id}-adapter`}
            aria-describedby={`${id}-adapter-note`}
            className="field-box"
            value={adapter}
            onChange={(e) => setAdapter(e.target.value)}
          >
            {adapterChoices(devices.data, adapter).map(({ value, label }) => (
              <option key={value} value={value}>
                {label}
              </option>
            ))}
          </select>
        </Labelled>
        <div className="flex gap-2">
          <Button type="submit" look="primary" disabled={!ready || state?.going}>
            {state?.going ? 'Sampling…' : 'Sample'}
          </Button>
          {state?.going ? <Button onClick={cancel}>Cancel</Button> : null}
        </div>
      </div>
      <Drawn state={state} />
    </form>
  );
}

function Labelled(props: { id: string; label: string; problem: string | null; help: string; children: ReactNode }) {
  return (
    <div className="min-w-0">
      <label htmlFor={props.id} className="mb-1 block font-medium">
        {props.label}
      </label>
      {props.children}
      <p id={`${props.id}-note`} className={`mt-1 text-xs ${props.problem ? 'text-bad' : 'text-faint'}`}>
        {props.problem ?? props.help}
      </p>
    </div>
  );
}

/** The prompt and what was drawn so far. */
function Drawn({ state }: { state: SamplingState | null }) {
  const { prompt = '', text = '', tokens = 0, wanted = 0, going = false, problem = null } = state ?? {};
  return (
    <div className="flex min-w-0 flex-col gap-2">
      <ScrollRegion label="Text drawn" className="max-h-96 min-h-40 flex-1 rounded-lg bg-sunken p-3">
        {state === null ? (
          <p className="text-faint">What the model adds appears here, token by token.</p>
        ) : (
          <p className="text-base break-words whitespace-pre-wrap" data-testid="sampled">
            <span className="text-faint">{prompt}</span>
            {text}
            {going ? (
              <span
                aria-hidden="true"
                className="ml-0.5 inline-block h-4 w-[7px] animate-pulse bg-accent align-[-2px]"
              />
            ) : null}
          </p>
        )}
      </ScrollRegion>
      {problem ? (
        <Notice tone="bad" title={tokens ? 'It ended early' : 'Nothing was drawn'}>
          {problem}
        </Notice>
      ) : null}
      <p role="status" className="min-h-4 text-xs text-faint">
        {state === null
          ? ''
          : going && !prompt
            ? 'Reading the checkpoint…'
            : `${formatCount(tokens)} of ${formatCount(wanted)} tokens${going || problem || tokens === wanted ? '' : ', cancelled'}`}
      </p>
    </div>
  );
}

const idsOf = (text: string): number[] =>
  text
    .split(/[\s,]+/)
    .filter(Boolean)
    .map(Number);

/** What is wrong with what was typed, by its field. `ids`: the token ids, where they are what is continued. */
function problemsOf(typed: Typed, ids: string | null): Partial<Record<keyof Typed | 'ids', string>> {
  const whole = (text: string, min: number, max: number) =>
    /^\s*\d+\s*$/.test(text) && Number(text) >= min && Number(text) <= max
      ? undefined
      : `a whole number from ${formatCount(min)} to ${formatCount(max)}`;
  const temperature = Number(typed.temperature);
  const isHeat = typed.temperature.trim() !== '' && temperature >= 0 && temperature <= 100;
  return {
    count: whole(typed.count, 1, 1000),
    temperature: isHeat ? undefined : 'a number from 0 to 100',
    topK: typed.topK.trim() === '' ? undefined : whole(typed.topK, 1, 10_000_000),
    seed: whole(typed.seed, 0, 0xffffffff),
    ids:
      ids !== null && idsOf(ids).some((one) => !Number.isInteger(one) || one < 0)
        ? 'whole numbers, 0 or more'
        : undefined,
  };
}
