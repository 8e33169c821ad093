import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { CATEGORIES } from '../../../engine/schedule/schedule.ts';
import type { StepEvent } from '../../../engine/trainer/events.ts';
import type { RunStore } from '../../runs/run-store.ts';
import { csvLine } from '../csv.ts';
import { DATA_POLICY } from '../headers.ts';
import { queryInteger, type Route } from '../router.ts';
import type { Services } from '../services.ts';

const COLUMNS = [
  'run',
  'rank',
  'step',
  'loss',
  'lossMean',
  'gradNorm',
  'iterationMs',
  'tokens',
  'currentBytes',
  'peakBytes',
  'liveBytes',
  ...CATEGORIES.map((category) => `${category}Bytes`),
  'hostBytes',
  'allocRetries',
  'ooms',
];

/** What a run reported: its events in order, its steps as a table, its memory summaries. */
export function eventRoutes({ store }: Services): Route[] {
  return [
    {
      method: 'GET',
      path: '/runs/:id/events',
      async handle({ params, query }) {
        const after = queryInteger(query, 'after', 0, { min: 0, max: Number.MAX_SAFE_INTEGER });
        const limit = queryInteger(query, 'limit', 1000, { min: 1, max: 10_000 });
        return { status: 200, body: await store.events(params.id, after, limit) };
      },
    },
    {
      method: 'GET',
      path: '/runs/:id/memory-summary',
      async handle({ params }) {
        await store.get(params.id);
        const summaries = (await store.lastEvents(params.id))
          .flatMap((event) => (event.event === 'summary' ? [{ rank: event.rank, text: event.text }] : []))
          .sort((a, b) => a.rank - b.rank);
        return { status: 200, body: { summaries } };
      },
    },
    {
      method: 'GET',
      path: '/runs/:id/steps.csv',
      async handle({ params, response, raw }) {
        const { id, name, config } = await store.get(params.id);
        response.writeHead(200, {
          'Content-Type': 'text/csv; charset=utf-8',
          'Content-Disposition': `attachment; filename="${id}-steps.csv"`,
          'Content-Security-Policy': DATA_POLICY,
          'Cache-Control': 'no-store',
        });
        if (raw.method === 'HEAD') response.end();
        else await pipeline(Readable.from(stepLines(store, id, name, simulatedLinkGBps(config))), response);
        return 'streamed';
      },
    },
  ];
}

/** A run over a simulated link says so in each line. */
async function* stepLines(store: RunStore, id: string, name: string, link: number | null): AsyncGenerator<string> {
  let lines = csvLine(link === null ? COLUMNS : [...COLUMNS, 'simulatedLinkGBps']);
  for await (const event of store.eventsAfter(id, 0)) {
    if (event.event !== 'step') continue;
    lines += csvLine([name, ...stepCells(event), ...(link === null ? [] : [link])]);
    if (lines.length < 64 * 1024) continue;
    yield lines;
    lines = '';
  }
  yield lines;
}

function simulatedLinkGBps(config: unknown): number | null {
  const { strategy } = config as { strategy?: { linkGBps?: number | null } };
  return strategy?.linkGBps ?? null;
}

function stepCells({ rank, step, loss, lossMean, gradNorm, iterationMs, tokens, memory }: StepEvent) {
  const { currentBytes, peakBytes, liveBytes, byCategory, hostBytes, allocRetries, ooms } = memory;
  const split = CATEGORIES.map((category) => byCategory[category]);
  const numbers = [rank, step, loss, lossMean, gradNorm, iterationMs, tokens, currentBytes, peakBytes, liveBytes];
  return [...numbers, ...split, hostBytes, allocRetries, ooms];
}
