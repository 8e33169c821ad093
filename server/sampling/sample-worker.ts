import { StudioError } from '../../engine/errors.ts';
import { type SampleRequest, sampleCheckpoint } from '../../engine/node/sample-checkpoint.ts';
import type { SampleLine } from '../contract.ts';
import { sampledPieces } from './sampled-pieces.ts';

/**
 * The process that continues a text for the studio: apart, so that neither its work nor its memory is the server's. It is
 * told once what to do, says one SampleLine after another, and ends; without its server it ends at once.
 */
process.once('disconnect', () => process.exit(0));
process.once('message', (request) => {
  void sampleFor(request as SampleRequest).then(() => process.disconnect());
});

async function sampleFor(request: SampleRequest): Promise<void> {
  try {
    const sampling = await sampleCheckpoint(request);
    try {
      let held = '';
      let first = true;
      for await (const { token, text } of sampledPieces(sampling)) {
        if (token !== null) await say({ type: 'token', token, text });
        else if (first) await say({ type: 'prompt', tokens: [...sampling.prompt], text });
        else held = text;
        first = false;
      }
      await say({ type: 'end', text: held, error: null });
    } finally {
      await sampling.close();
    }
  } catch (error) {
    if (!(error instanceof StudioError)) console.error(error);
    const { code, message } =
      error instanceof StudioError
        ? error
        : { code: 'internal', message: `Sampling failed: ${(error as Error).message}` };
    await say({ type: 'end', text: '', error: { code, message } });
  }
}

/** Resolves when the line is handed over: the process may end then. */
function say(line: SampleLine): Promise<void> {
  return new Promise((resolve) => process.send?.(line, undefined, undefined, () => resolve()));
}
