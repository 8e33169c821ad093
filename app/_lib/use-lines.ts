import { useEffect, useRef, useState } from 'react';

/** How far a work is that the studio does line by line. */
export interface LinesState<Line> {
  readonly going: boolean;
  /** All but the progress, of which only the last is kept. */
  readonly said: readonly Line[];
  readonly progress: { readonly doneBytes: number; readonly ofBytes: number } | null;
  /** Why it was refused or broke off. */
  readonly problem: string | null;
}

/** One work at a time; it ends when the page is left or the person cancels. `ask` is one of the api's. */
export function useLines<Line extends { readonly type: string }, Body>(
  ask: (request: { body: Body; signal: AbortSignal }, onLine: (line: Line) => void) => Promise<void>,
) {
  const [state, setState] = useState<LinesState<Line> | null>(null);
  const leaving = useRef<AbortController | null>(null);
  useEffect(() => () => leaving.current?.abort(), []);

  const start = async (body: Body): Promise<void> => {
    leaving.current?.abort();
    const mine = new AbortController();
    leaving.current = mine;
    const change = (next: (before: LinesState<Line>) => LinesState<Line>) => {
      if (leaving.current === mine) setState((before) => before && next(before));
    };
    setState({ going: true, said: [], progress: null, problem: null });
    try {
      await ask({ body, signal: mine.signal }, (line) =>
        change((before) =>
          line.type === 'progress'
            ? { ...before, progress: line as unknown as LinesState<Line>['progress'] }
            : { ...before, said: [...before.said, line] },
        ),
      );
    } catch (error) {
      const problem = mine.signal.aborted
        ? 'It was cancelled.'
        : error instanceof Error
          ? error.message
          : String(error);
      change((before) => ({ ...before, problem }));
    } finally {
      change((before) => ({ ...before, going: false }));
    }
  };
  return { state, start, cancel: () => leaving.current?.abort() };
}
