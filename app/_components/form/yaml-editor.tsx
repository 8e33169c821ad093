'use client';

import { useId, useState } from 'react';
import { type Draft, fromYaml, toYaml, withoutDefaults } from '../../_lib/config-draft.ts';
import { CopyButton } from '../ui/copy-button.tsx';

/** The config as the text that `studio train` takes. Edits go to the form and back; what cannot be read stays in the text. */
export function YamlEditor(props: {
  draft: Draft;
  problem: string | null;
  problems: ReadonlyMap<string, string>;
  onProblem: (problem: string | null) => void;
  onChange: (draft: Draft) => void;
}) {
  const id = useId();
  const [complete, setComplete] = useState(false);
  // While it is being edited the text is the person's own, comments and all.
  const [typed, setTyped] = useState<string | null>(null);
  const written = toYaml(complete ? props.draft : withoutDefaults(props.draft));
  const text = typed ?? written;
  const edit = (next: string) => {
    setTyped(next);
    const { draft, problem } = fromYaml(next);
    props.onProblem(problem);
    if (draft) props.onChange(draft);
  };
  const wrong =
    props.problem ??
    ([...props.problems].map(([path, message]) => (path ? `${path}: ${message}` : message)).join('\n') || null);
  return (
    <section className="panel p-4 sm:p-5" aria-label="Config as YAML">
      <div className="mb-2 flex flex-wrap items-center gap-2">
        <label htmlFor={id} className="font-semibold">
          Config as YAML
        </label>
        <label className="ml-auto flex items-center gap-1.5 text-muted">
          <input
            type="checkbox"
            checked={complete}
            onChange={(e) => {
              setComplete(e.target.checked);
              if (!props.problem) setTyped(null);
            }}
            className="size-3.5 accent-[var(--accent-fill)]"
          />
          With defaults
        </label>
        <CopyButton text={text} label="Copy" />
      </div>
      <textarea
        id={id}
        value={text}
        onChange={(e) => edit(e.target.value)}
        onBlur={() => {
          if (!props.problem) setTyped(null);
        }}
        spellCheck={false}
        autoComplete="off"
        aria-invalid={wrong ? true : undefined}
        aria-describedby={wrong ? `${id}-problem` : `${id}-hint`}
        rows={Math.min(44, Math.max(16, text.split('\n').length + 1))}
        className="field-box font-mono text-xs/5"
      />
      {wrong ? (
        <p id={`${id}-problem`} role="alert" className="mt-2 text-xs whitespace-pre-line text-bad">
          {wrong}
        </p>
      ) : (
        <p id={`${id}-hint`} className="mt-2 text-xs text-faint">
          Save it as a file and run it without the studio:{' '}
          <code className="font-mono">npm run -s studio -- train config.yaml</code>
        </p>
      )}
    </section>
  );
}
