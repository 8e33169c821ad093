import { StudioError } from '../../engine/errors.ts';

/** `checkpoint inspect FILE [--json]`. Returns the exit code. */
export async function checkpoint(_args: string[]): Promise<number> {
  throw new StudioError('not-built-yet', 'checkpoint is not built yet');
}
