'use client';

import { useState } from 'react';
import type { RunLog } from '../../_lib/run-log.ts';
import { CopyButton } from '../ui/copy-button.tsx';
import { ScrollRegion } from '../ui/scroll-region.tsx';
import { Segmented } from '../ui/segmented.tsx';

/** The memorySummary() table of a rank, as it printed it at its end. */
export function MemorySummary({ log, version }: { log: RunLog; version: number }) {
  void version;
  const ranks = [...log.summaries.keys()].sort((a, b) => a - b);
  const [chosen, setChosen] = useState(0);
  const text = log.summaries.get(chosen) ?? log.summaries.get(ranks[0] ?? 0);
  return (
    <section className="panel min-w-0 p-4 sm:p-5" aria-label="Memory summary">
      <div className="mb-2 flex flex-wrap items-center gap-2">
        <h2 className="mr-auto font-semibold">Memory summary</h2>
        {ranks.length > 1 ? (
          <Segmented
            label="Rank of the memory summary"
            segments={ranks.map((rank) => ({ value: rank, label: `Rank ${rank}` }))}
            value={chosen}
            onChange={setChosen}
          />
        ) : null}
        {text ? <CopyButton text={text} label="Copy" /> : null}
      </div>
      {text ? (
        <ScrollRegion label={`Memory summary of rank ${chosen}`} className="rounded-lg bg-sunken p-3">
          <pre className="w-max font-mono text-2xs/4">{text}</pre>
        </ScrollRegion>
      ) : (
        <p className="text-muted">Each rank prints it at its end.</p>
      )}
    </section>
  );
}
