'use client';

import { useState } from 'react';
import { type MemoryTableSection, parseMemoryTable } from '../../_lib/memory-table.ts';
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
          <pre className="hidden w-max font-mono text-2xs/4 sm:block">{text}</pre>
          <div className="space-y-5 sm:hidden">
            {parseMemoryTable(text).map((section) => (
              <NarrowTable key={section.titles[0]} section={section} />
            ))}
          </div>
        </ScrollRegion>
      ) : (
        <p className="text-muted">Each rank prints it at its end.</p>
      )}
    </section>
  );
}

const COLUMNS = 'grid grid-cols-4 gap-x-2 text-right whitespace-nowrap';

/** A section of the table where its lines would be cut: each name over its four numbers. */
function NarrowTable({ section }: { section: MemoryTableSection }) {
  return (
    <div className="text-2xs">
      <p className="font-medium">{section.titles[0]}</p>
      {section.titles.length > 1 ? <p className="text-muted">{section.titles.slice(1).join(' · ')}</p> : null}
      <p className={`${COLUMNS} mt-1.5 text-faint`}>
        {section.heads.map((head) => (
          <span key={head}>{head}</span>
        ))}
      </p>
      {section.rows.map(({ name, isPart, values }, i) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: parts have one name under each metric.
        <div key={i} className={isPart ? 'text-muted' : 'mt-1.5 border-t border-line pt-1.5'}>
          <p className={isPart ? 'pl-2' : 'font-medium'}>{name}</p>
          <p className={`${COLUMNS} font-mono text-[10px]/4`}>
            {values.map((value, at) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: a column.
              <span key={at}>{value}</span>
            ))}
          </p>
        </div>
      ))}
    </div>
  );
}
