'use client';

import { useQuery } from '@tanstack/react-query';
import { type ReactNode, useId, useRef, useState } from 'react';
import { legalMeshes } from '../../../engine/config.ts';
import type { AdapterChoice } from '../../_lib/adapter-choices.ts';
import { listFiles, uploadFile } from '../../_lib/api.ts';
import type { Field } from '../../_lib/config-fields.ts';
import { formatBytes } from '../../_lib/format.ts';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';
import { Segmented } from '../ui/segmented.tsx';

/** Columns that a control needs. */
const SPANS = { 1: '', 2: 'sm:col-span-2', 3: 'sm:col-span-full' } as const;

function spanOf(field: Field): keyof typeof SPANS {
  if (field.input === 'ranks') return 2;
  if (field.input === 'wrapping' || field.input === 'optimizer-groups') return 3;
  if (field.input === 'file' || field.input === 'names') return 2;
  if (field.input !== 'choice') return 1;
  if (field.path.endsWith('.kind')) return 3;
  const width = field.choices.reduce((sum, { label }) => sum + label.length + 4, 0);
  return width <= 28 ? 1 : width <= 60 ? 2 : 3;
}

interface FieldProps {
  readonly field: Field;
  readonly value: unknown;
  readonly problem: string | null;
  /** What may not be meant, though it is legal. */
  readonly hint: string | null;
  readonly adapters: readonly AdapterChoice[];
  /** How many ranks the draft has. */
  readonly ranks: number;
  readonly onChange: (value: unknown) => void;
}

/** Controls of several parts, which a label names as a group. */
const GROUPED = new Set<Field['input']>(['choice', 'ranks', 'numbers', 'mesh', 'wrapping', 'optimizer-groups']);

/** One field of the config: its name for people, its key in the config, the control, what is wrong with it. */
export function ConfigField(props: FieldProps) {
  const { field, problem, hint } = props;
  const id = useId();
  const key = field.path.slice(field.path.indexOf('.') + 1);
  const described =
    [field.help && !problem ? `${id}-help` : '', hint ? `${id}-hint` : '', problem ? `${id}-problem` : '']
      .filter(Boolean)
      .join(' ') || undefined;
  const grouped = GROUPED.has(field.input);
  const label = (
    <>
      <span className="shrink-0 font-medium">{field.label}</span>
      <span
        aria-hidden="true"
        className="ml-auto min-w-0 text-right font-mono text-2xs wrap-anywhere text-faint"
        title={field.path}
      >
        {key}
      </span>
    </>
  );
  const wide = SPANS[spanOf(field)];
  return (
    <div className={`min-w-0 ${wide}`} data-field={field.path}>
      {grouped ? (
        <span id={`${id}-label`} className="mb-1 flex flex-wrap items-baseline justify-between gap-x-2">
          {label}
        </span>
      ) : (
        <label htmlFor={id} id={`${id}-label`} className="mb-1 flex flex-wrap items-baseline justify-between gap-x-2">
          {label}
        </label>
      )}
      <Control {...props} id={id} describedBy={described} />
      {problem ? (
        <p id={`${id}-problem`} className="mt-1 flex gap-1.5 text-xs text-bad">
          <Icon name="alert" className="mt-px size-3.5" />
          {problem}
        </p>
      ) : null}
      {hint ? (
        <p id={`${id}-hint`} className="mt-1 flex gap-1.5 text-xs text-warn">
          <Icon name="info" className="mt-px size-3.5" />
          {hint}
        </p>
      ) : null}
      {field.help && !problem ? (
        <p id={`${id}-help`} className="mt-1 text-xs text-faint">
          {field.help}
        </p>
      ) : null}
    </div>
  );
}

type ControlProps = FieldProps & { id: string; describedBy: string | undefined };

function Control(props: ControlProps): ReactNode {
  const { field, value, onChange, id, describedBy, problem } = props;
  const shared = { id, 'aria-describedby': describedBy, 'aria-invalid': problem ? true : undefined };
  switch (field.input) {
    case 'integer':
    case 'number':
      return <NumberControl {...props} unit={field.unit} none={field.none} whole={field.input === 'integer'} />;
    case 'numbers':
      return <NumbersControl {...props} count={field.count} />;
    case 'switch':
      return (
        <label className="relative flex min-h-8 items-center gap-2 text-muted">
          <input
            {...shared}
            type="checkbox"
            role="switch"
            aria-checked={value === true}
            checked={value === true}
            onChange={(e) => onChange(e.target.checked)}
            className="peer absolute inset-0 m-0 size-full cursor-pointer opacity-0"
          />
          <span className="relative h-[18px] w-8 rounded-full bg-line-strong transition-colors peer-checked:bg-accent-fill peer-focus-visible:outline-2 peer-focus-visible:outline-offset-2 peer-focus-visible:outline-focus after:absolute after:top-0.5 after:left-0.5 after:size-3.5 after:rounded-full after:bg-white after:transition-transform peer-checked:after:translate-x-3.5" />
          {value === true ? 'on' : 'off'}
        </label>
      );
    case 'choice': {
      const chosen = field.choices.find((choice) => choice.value === value);
      return (
        <>
          <Segmented
            label={field.label}
            labelledBy={`${id}-label`}
            describedBy={describedBy}
            segments={field.choices}
            value={value as string | null}
            onChange={onChange}
          />
          {chosen?.hint ? <span className="mt-1 block text-xs text-faint">{chosen.hint}</span> : null}
        </>
      );
    }
    case 'ranks':
      return (
        <Segmented
          label={field.label}
          labelledBy={`${id}-label`}
          describedBy={describedBy}
          segments={[1, 2, 3, 4, 5, 6, 7, 8].map((count) => ({ value: count, label: String(count) }))}
          value={value as number}
          onChange={onChange}
        />
      );
    case 'mesh':
      return <MeshControl {...props} />;
    case 'wrapping':
      return <WrappingControl {...props} />;
    case 'optimizer-groups':
      return <OptimizerGroupsControl {...props} />;
    case 'adapter':
      return (
        <select {...shared} value={String(value)} onChange={(e) => onChange(e.target.value)} className="field-box">
          {props.adapters.map((adapter) => (
            <option key={adapter.value} value={adapter.value}>
              {adapter.label}
            </option>
          ))}
        </select>
      );
    case 'names':
      return <NamesControl {...props} none={field.none} />;
    case 'file':
      return <FileControl {...props} field={field} />;
    case 'text':
      return (
        <input
          {...shared}
          type="text"
          className="field-box"
          value={typeof value === 'string' ? value : ''}
          placeholder={field.none}
          onChange={(e) => onChange(field.none && e.target.value === '' ? null : e.target.value)}
          spellCheck={false}
          autoComplete="off"
        />
      );
  }
}

/** What a typed number means: nothing is null where that is a value, and what is no number stays text, for the checks to name. */
function parseNumber(text: string, nullable: boolean): unknown {
  const trimmed = text.trim();
  if (trimmed === '') return nullable ? null : '';
  const number = Number(trimmed);
  return Number.isFinite(number) ? number : text;
}

/** Keeps what was typed ("1e-", "0.") while it means the value; follows the value when something else changes it. */
function useTypedText(value: unknown, meaning: (text: string) => unknown, toText: (value: unknown) => string) {
  const [typed, setTyped] = useState(() => toText(value));
  const means = meaning(typed);
  const text = JSON.stringify(means) === JSON.stringify(value) ? typed : toText(value);
  return [text, setTyped] as const;
}

function NumberControl(props: ControlProps & { unit?: string; none?: string; whole: boolean; name?: string }) {
  const { value, onChange, unit, none } = props;
  const meaning = (text: string) => parseNumber(text, none !== undefined);
  const [text, setText] = useTypedText(value, meaning, (v) => (v === null || v === undefined ? '' : String(v)));
  return (
    <span className="relative block w-full">
      <input
        id={props.id}
        aria-label={props.name}
        aria-describedby={props.describedBy}
        aria-invalid={props.problem ? true : undefined}
        type="text"
        inputMode={props.whole ? 'numeric' : 'decimal'}
        className={`field-box ${unit ? 'pr-14' : ''}`}
        value={text}
        placeholder={none}
        autoComplete="off"
        onChange={(e) => {
          setText(e.target.value);
          onChange(meaning(e.target.value));
        }}
      />
      {unit ? (
        <span className="pointer-events-none absolute inset-y-0 right-2.5 grid place-items-center text-xs text-faint">
          {unit}
        </span>
      ) : null}
    </span>
  );
}

function NumbersControl(props: ControlProps & { count: number }) {
  const { value, onChange, count, field } = props;
  const values = Array.isArray(value) ? value : new Array(count).fill('');
  return (
    <fieldset aria-labelledby={`${props.id}-label`} className="flex gap-2">
      {values.map((one, i) => (
        <NumberControl
          // biome-ignore lint/suspicious/noArrayIndexKey: a place in a fixed list is what it is.
          key={i}
          {...props}
          id={`${props.id}-${i}`}
          name={`${field.label} ${i + 1}`}
          value={one}
          whole={false}
          onChange={(changed) => onChange(values.map((before, at) => (at === i ? changed : before)))}
        />
      ))}
    </fieldset>
  );
}

function NamesControl(props: ControlProps & { none?: string; name?: string }) {
  const { value, onChange } = props;
  const meaning = (text: string) => text.split(/[\s,]+/).filter(Boolean);
  const [text, setText] = useTypedText(value ?? [], meaning, (v) => (Array.isArray(v) ? v.join(', ') : ''));
  return (
    <input
      id={props.id}
      aria-label={props.name}
      aria-describedby={props.describedBy}
      aria-invalid={props.problem ? true : undefined}
      type="text"
      className="field-box font-mono text-xs"
      value={text}
      placeholder={props.none ?? 'names, separated by commas'}
      spellCheck={false}
      autoComplete="off"
      onChange={(e) => {
        setText(e.target.value);
        onChange(meaning(e.target.value));
      }}
    />
  );
}

/** The meshes that so many ranks can form; one that they cannot stays visible until another is chosen. */
function MeshControl(props: ControlProps) {
  const { value, onChange, field, id } = props;
  const told = (mesh: readonly unknown[]) => `${mesh[0]} × ${mesh[1]}`;
  const meshes = legalMeshes(props.ranks);
  const chosen = Array.isArray(value) ? told(value) : null;
  const known = meshes.some((mesh) => told(mesh) === chosen);
  if (!meshes.length && chosen === null)
    return <p className="min-h-8 py-1.5 text-muted">None: {props.ranks} ranks make no two rows of two or more.</p>;
  return (
    <Segmented
      label={field.label}
      labelledBy={`${id}-label`}
      describedBy={props.describedBy}
      segments={[
        ...meshes.map((mesh) => ({
          value: told(mesh),
          label: told(mesh),
          hint: `${mesh[0]} rows of ${mesh[1]} ranks`,
        })),
        ...(chosen !== null && !known ? [{ value: chosen, label: chosen }] : []),
      ]}
      value={chosen}
      onChange={(mesh) => onChange(meshes.find((one) => told(one) === mesh) ?? value)}
    />
  );
}

const WRAPPINGS = [
  { value: 'classes', label: 'by class', hint: 'Each module of these classes is a unit' },
  { value: 'size', label: 'by size', hint: 'PyTorch’s rule: what has so many parameters left is a unit' },
  { value: 'none', label: 'none', hint: 'The whole model is one unit' },
] as const;

/** A wrap policy: names of classes, a size, or nothing. What was typed for one is kept while another is looked at. */
function WrappingControl(props: ControlProps) {
  const { value, onChange, id, field } = props;
  const kind = value === null ? 'none' : Array.isArray(value) ? 'classes' : 'size';
  const [classes, setClasses] = useState<unknown>(kind === 'classes' ? value : []);
  const [size, setSize] = useState<unknown>(kind === 'size' ? value : { minNumParams: 100_000 });
  if (kind === 'classes' && value !== classes) setClasses(value);
  if (kind === 'size' && value !== size) setSize(value);
  const least = (value as { minNumParams?: unknown } | null)?.minNumParams;
  return (
    <div className="flex flex-wrap items-start gap-2">
      <Segmented
        label={field.label}
        labelledBy={`${id}-label`}
        segments={WRAPPINGS}
        value={kind}
        onChange={(next) => onChange(next === 'none' ? null : next === 'classes' ? classes : size)}
      />
      <div className="min-w-56 flex-1">
        {kind === 'classes' ? (
          <NamesControl {...props} name={`${field.label}: classes`} none="no class: one unit" />
        ) : null}
        {kind === 'size' ? (
          <NumberControl
            {...props}
            name={`${field.label}: least parameters`}
            value={least}
            unit="params"
            whole
            onChange={(minNumParams) => onChange({ minNumParams })}
          />
        ) : null}
        {kind === 'none' ? <p className="py-1.5 text-xs text-faint">{WRAPPINGS[2].hint}.</p> : null}
      </div>
    </div>
  );
}

interface OptimizerGroup {
  readonly match?: string;
  readonly lr?: unknown;
  readonly weightDecay?: unknown;
}

/** Parameter groups, one line each: which names, and what they have of their own. */
function OptimizerGroupsControl(props: ControlProps) {
  const { onChange, id, field } = props;
  const groups: readonly OptimizerGroup[] = Array.isArray(props.value) ? props.value : [];
  const change = (at: number, key: keyof OptimizerGroup, value: unknown) =>
    onChange(
      groups.map((group, i) => {
        if (i !== at) return group;
        const { [key]: _, ...rest } = group;
        return value === null ? rest : { ...rest, [key]: value };
      }),
    );
  return (
    <fieldset aria-labelledby={`${id}-label`} className="space-y-2">
      {groups.map((group, i) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: the order of entries is what they mean.
        <div key={i} className="grid grid-cols-[minmax(0,2fr)_minmax(0,1fr)_minmax(0,1fr)_auto] gap-2">
          <input
            aria-label={`${field.label} ${i + 1}: names`}
            aria-invalid={props.problem ? true : undefined}
            type="text"
            className="field-box font-mono text-xs"
            value={group.match ?? ''}
            placeholder="*.bias"
            spellCheck={false}
            autoComplete="off"
            onChange={(e) => change(i, 'match', e.target.value)}
          />
          {(['lr', 'weightDecay'] as const).map((key) => (
            <NumberControl
              key={key}
              {...props}
              id={`${id}-${i}-${key}`}
              name={`${field.label} ${i + 1}: ${key === 'lr' ? 'learning rate' : 'weight decay'}`}
              none={key === 'lr' ? 'rate as above' : 'decay as above'}
              whole={false}
              value={group[key] ?? null}
              onChange={(value) => change(i, key, value)}
            />
          ))}
          <Button
            look="quiet"
            onClick={() => onChange(groups.filter((_, at) => at !== i))}
            aria-label={`Remove group ${i + 1}`}
          >
            Remove
          </Button>
        </div>
      ))}
      <Button onClick={() => onChange([...groups, { match: '*.bias', weightDecay: 0 }])}>Add a group</Button>
    </fieldset>
  );
}

const ACCEPT = {
  text: '.txt,.tokens,.raw,text/plain',
  batches: '.json,application/json',
  checkpoint: '.safetensors,.pt,.ckpt,.pth,.bin,.tar',
};

function FileControl(props: ControlProps & { field: Field & { input: 'file' } }) {
  const { field, value, onChange } = props;
  const input = useRef<HTMLInputElement>(null);
  const [state, setState] = useState<{ text: string; bad: boolean } | null>(null);
  const [over, setOver] = useState(false);
  const files = useQuery({ queryKey: ['files'], queryFn: ({ signal }) => listFiles(signal), retry: false });
  const endings = ACCEPT[field.upload].split(',').filter((ending) => ending.startsWith('.'));
  const fits = (path: string) =>
    endings.some((ending) => path.endsWith(ending)) || (field.upload === 'checkpoint' && !/\.[^/]*$/.test(path));
  const known = (files.data?.files ?? []).filter(({ path }) => fits(path));
  const upload = async (file: File) => {
    setState({ text: `Uploading ${file.name}, ${formatBytes(file.size)}…`, bad: false });
    try {
      const { path, bytes } = await uploadFile(field.upload, file);
      onChange(path);
      void files.refetch();
      setState({ text: `${file.name} is in the data folder, ${formatBytes(bytes)}`, bad: false });
    } catch (error) {
      setState({ text: error instanceof Error ? error.message : String(error), bad: true });
    }
  };
  return (
    <>
      <fieldset
        aria-label={`${field.label}: a path, or a file dropped here`}
        className={`flex min-w-0 gap-2 rounded-[7px] ${over ? 'outline-2 outline-offset-2 outline-accent' : ''}`}
        onDragOver={(e) => {
          if (!e.dataTransfer.types.includes('Files')) return;
          e.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(e) => {
          const file = e.dataTransfer.files[0];
          if (!file) return;
          e.preventDefault();
          setOver(false);
          void upload(file);
        }}
      >
        <input
          id={props.id}
          aria-describedby={props.describedBy}
          aria-invalid={props.problem ? true : undefined}
          type="text"
          className="field-box font-mono text-xs"
          value={typeof value === 'string' ? value : ''}
          placeholder={field.none ?? 'path in the data folder'}
          list={known.length ? `${props.id}-known` : undefined}
          spellCheck={false}
          autoComplete="off"
          onChange={(e) => onChange(field.none && e.target.value === '' ? null : e.target.value)}
        />
        <datalist id={`${props.id}-known`}>
          {known.map(({ path, bytes }) => (
            <option key={path} value={path}>
              {formatBytes(bytes)}
            </option>
          ))}
        </datalist>
        <input
          ref={input}
          type="file"
          accept={ACCEPT[field.upload]}
          className="hidden"
          aria-label={`Upload: ${field.label}`}
          onChange={(e) => {
            const file = e.target.files?.[0];
            e.target.value = '';
            if (file) void upload(file);
          }}
        />
        <Button onClick={() => input.current?.click()} aria-label={`Upload a file for ${field.label}`}>
          <Icon name="upload" className="size-3.5" />
          Upload
        </Button>
      </fieldset>
      {state ? (
        <p role="status" className={`mt-1 text-xs ${state.bad ? 'text-bad' : 'text-muted'}`}>
          {state.text}
        </p>
      ) : null}
    </>
  );
}
