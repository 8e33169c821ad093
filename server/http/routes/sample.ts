import { StudioError } from '../../../engine/errors.ts';
import { freeMemoryBytes } from '../../../engine/node/shared-segment.ts';
import { SampleBody } from '../../contract.ts';
import { quote } from '../../data-folder.ts';
import { sampleInProcess } from '../../sampling/sample-process.ts';
import { readJson } from '../body.ts';
import { RequestError } from '../errors.ts';
import { leaving, sendLines } from '../line-answer.ts';
import type { Route } from '../router.ts';
import type { Services } from '../services.ts';
import type { CheckpointPlace } from './checkpoint-places.ts';

const MAX_SAMPLINGS = 2;
let sampling = 0;

/** Continuing a text from a checkpoint, in a process that ends with the request. */
export function sampleRoutes({ folder }: Services, places: readonly CheckpointPlace[]): Route[] {
  return places.map(({ address, find }) => ({
    method: 'POST',
    path: `${address}/sample`,
    async handle({ raw, response, params }) {
      const { prompt, tokens, adapter, ...settings } = await readJson(raw, SampleBody);
      if ((prompt === null) === (tokens === null))
        throw new RequestError('bad-request', 'Give either a prompt or tokens.');
      const { name, path, origin } = await find(params);
      const { config, params: parameters } = await origin();
      if (!config)
        throw new StudioError(
          'bad-data',
          `${quote(name)} does not say what model it holds: it has no config of a run of this studio.`,
        );
      refuseMemory(parameters);
      if (sampling >= MAX_SAMPLINGS)
        throw new StudioError(
          'conflict',
          `${MAX_SAMPLINGS} texts are being continued; wait for one to end, or cancel it.`,
        );
      sampling++;
      try {
        const lines = sampleInProcess(
          {
            path,
            prompt: prompt ?? (tokens as number[]),
            settings,
            config,
            adapter,
            corpusFolder: folder.corpora,
          },
          leaving(response),
        );
        await sendLines(lines, response, folder.root, (line) => (line.type === 'end' ? line.error : null));
      } finally {
        sampling--;
      }
      return 'streamed';
    },
  }));
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
