'use client';

import { createContext, useContext } from 'react';

/** What has to be said beside every chart below: that a link is simulated. Null: nothing. */
export const ChartNote = createContext<string | null>(null);

/** The note of the charts around, beside a title. */
export function ChartNoteText() {
  const note = useContext(ChartNote);
  return note === null ? null : <span className="shrink-0 text-xs font-medium text-warn">{note}</span>;
}
