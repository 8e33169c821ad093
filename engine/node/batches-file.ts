import { readFile } from 'node:fs/promises';
import { type BatchesFile, parseBatches } from '../data/batches.ts';
import { invalidUtf8At } from '../data/utf8.ts';
import { StudioError } from '../errors.ts';
import { checkDataFile, naming } from './data-file.ts';

const MAX_BATCHES_BYTES = 64 * 2 ** 20;
const WAY_OUT = 'Give a JSON file of batches[step][rank] = {"input", "target"}.';

/**
 * Reads a `batches` file. Rejects with `bad-data` (absent, empty, not UTF-8, not JSON, or as `parseBatches`) or
 * `too-large` (over 64 MiB). No message quotes the file's text, as JSON.parse's own would.
 */
export async function readBatchesFile(path: string): Promise<BatchesFile> {
  await checkDataFile(path, MAX_BATCHES_BYTES, WAY_OUT);
  const bytes = await naming(path, WAY_OUT, () => readFile(path));
  const invalidAt = invalidUtf8At(bytes);
  if (invalidAt >= 0) {
    throw new StudioError('bad-data', `${path} is not UTF-8 at byte ${invalidAt}. ${WAY_OUT}`, {
      path,
      offset: invalidAt,
    });
  }
  let json: unknown;
  try {
    json = JSON.parse(bytes.toString('utf8'));
  } catch {
    throw new StudioError('bad-data', `${path} is not JSON. ${WAY_OUT}`, { path });
  }
  return parseBatches(json, path);
}
