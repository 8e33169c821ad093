import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { StudioError } from '../../../engine/errors.ts';
import { freeMemoryBytes } from '../../../engine/node/shared-segment.ts';
import { SampleBody, type SampleLine } from '../../contract.ts';
import { withAbsolutePaths } from '../../runs/config-paths.ts';
import { configOf } from '../../runs/run-store.ts';
import { sampleInProcess } from '../../sampling/sample-process.ts';
import { readJson } from '../body.ts';
import { RequestError } from '../errors.ts';
import { DATA_POLICY } from '../headers.ts';
import type { Route } from '../router.ts';
import type { Services } from '../services.ts';
import { findCheckpoint } from './find-checkpoint.ts';

const MAX_SAMPLINGS = 2;
let sampling = 0;

/** Continuing a text from a checkpoint, in a process that ends with the request. */
export function sampleRoutes({ store, folder }: Services): Route[] {
  return [
    {
      method: 'POST',
      path: '/runs/:id/checkpoints/:name/sample',
      async handle({ raw, response, params }) {
        const { prompt, tokens, adapter, ...settings } = await readJson(raw, SampleBody);
        if ((prompt === null) === (tokens === null))
          throw new RequestError('bad-request', 'Give either a prompt or tokens.');
        const { row, path } = await findCheckpoint({ store, folder }, params);
        const run = await store.get(row.runId);
        refuseMemory(Number(run.params ?? 0));
        if (sampling >= MAX_SAMPLINGS)
          throw new StudioError(
            'conflict',
            `${MAX_SAMPLINGS} texts are being continued; wait for one to end, or cancel it.`,
          );
        const left = new AbortController();
        response.once('close', () => left.abort());
        sampling++;
        try {
          const lines = sampleInProcess(
            {
              path,
              prompt: prompt ?? (tokens as number[]),
              settings,
              config: withAbsolutePaths(configOf(run), (inside) => `${folder.root}/${inside}`),
              adapter,
              corpusFolder: folder.corpora,
            },
            left.signal,
          );
          await send(lines, response, `${folder.root}/`);
        } finally {
          sampling--;
        }
        return 'streamed';
      },
    },
  ];
}

/** The weights are read whole, as float32. */
function refuseMemory(params: number): void {
  const neededBytes = params * 4;
  const freeBytes = freeMemoryBytes();
  if (neededBytes <= freeBytes) return;
  const gib = (bytes: number) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
  throw new StudioError(
    'out-of-memory',
    `The weights need ${gib(neededBytes)} of memory to be read, and this machine has ${gib(freeBytes)} free. End what else runs, or sample on a larger machine.`,
    { neededBytes, freeBytes },
  );
}

/** Each line as it comes; an end before the first is the answer to the request. `root` is not told to anybody. */
async function send(lines: AsyncIterable<SampleLine>, response: ServerResponse, root: string): Promise<void> {
  for await (const line of lines) {
    if (!response.headersSent) {
      if (line.type === 'end' && line.error)
        throw new StudioError(line.error.code as StudioError['code'], line.error.message);
      response.writeHead(200, {
        'Content-Type': 'application/x-ndjson; charset=utf-8',
        'Cache-Control': 'no-store',
        'Content-Security-Policy': DATA_POLICY,
      });
    }
    const told =
      line.type === 'end' && line.error
        ? { ...line, error: { ...line.error, message: line.error.message.replaceAll(root, '') } }
        : line;
    if (!response.write(`${JSON.stringify(told)}\n`))
      await Promise.race([once(response, 'drain'), once(response, 'close')]);
  }
  response.end();
}
