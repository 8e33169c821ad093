import { type SampleRequest, sampleCheckpoint } from '../../engine/node/sample-checkpoint.ts';
import { answerServer, say, told } from '../children/child-side.ts';
import type { SampleLine } from '../contract.ts';
import { sampledPieces } from './sampled-pieces.ts';

/**
 * The process that continues a text for the studio: apart, so that neither its work nor its memory is the server's. It is
 * told once what to do, says one SampleLine after another, and ends.
 */
answerServer((request) => sampleFor(request as SampleRequest));

async function sampleFor(request: SampleRequest): Promise<void> {
  const tell = (line: SampleLine) => say(line);
  try {
    const sampling = await sampleCheckpoint(request);
    try {
      let held = '';
      let first = true;
      for await (const { token, text } of sampledPieces(sampling)) {
        if (token !== null) await tell({ type: 'token', token, text });
        else if (first) await tell({ type: 'prompt', tokens: [...sampling.prompt], text });
        else held = text;
        first = false;
      }
      await tell({ type: 'end', text: held, error: null });
    } finally {
      await sampling.close();
    }
  } catch (error) {
    await tell({ type: 'end', text: '', error: told(error, 'Sampling') });
  }
}
