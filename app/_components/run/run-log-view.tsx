'use client';

import { useEffect, useRef, useState } from 'react';
import type { RunLog } from '../../_lib/run-log.ts';

/** Terminal colours and the like: a log is text here. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what is removed.
const CONTROL = /\u001b\[[0-9;?]*[ -/]*[@-~]|[\u0000-\u0008\u000b-\u001f\u007f]/g;

/** The run's log. It follows the last line unless one has scrolled up. */
export function RunLogView({ log, version }: { log: RunLog; version: number }) {
  const box = useRef<HTMLDivElement>(null);
  const [follows, setFollows] = useState(true);
  // biome-ignore lint/correctness/useExhaustiveDependencies: new lines come with a new version.
  useEffect(() => {
    if (follows && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [version, follows]);
  return (
    <section className="panel min-w-0 p-4 sm:p-5" aria-label="Log">
      <div className="mb-2 flex min-h-8 items-center justify-between">
        <h2 className="font-semibold">Log</h2>
        {follows ? null : (
          <button
            type="button"
            className="rounded px-1.5 text-xs text-accent hover:bg-hover"
            onClick={() => setFollows(true)}
          >
            Follow
          </button>
        )}
      </div>
      <div
        ref={box}
        role="log"
        aria-label="Log lines"
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls has to be reached by the keyboard.
        tabIndex={0}
        onScroll={(e) => {
          const { scrollTop, scrollHeight, clientHeight } = e.currentTarget;
          setFollows(scrollHeight - scrollTop - clientHeight < 24);
        }}
        className="h-80 overflow-auto rounded-lg bg-sunken p-3 font-mono text-xs/5"
      >
        {log.linesDropped ? <p className="text-faint">… {log.linesDropped} older lines</p> : null}
        {log.lines.length ? (
          log.lines.map(({ seq, rank, line }) => (
            <p key={seq} className="flex gap-2">
              <span className="w-12 shrink-0 text-faint select-none">{rank === null ? 'run' : `rank ${rank}`}</span>
              <span className="min-w-0 break-words whitespace-pre-wrap">{line.replace(CONTROL, '')}</span>
            </p>
          ))
        ) : (
          <p className="text-faint">Nothing logged yet.</p>
        )}
      </div>
    </section>
  );
}
