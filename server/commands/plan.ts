import { StudioError } from '../../engine/errors.ts';

/** `plan CONFIG [--adapter NAME] [--json]`. Returns the exit code. */
export async function plan(_args: string[]): Promise<number> {
  throw new StudioError('not-built-yet', 'plan is not built yet');
}
