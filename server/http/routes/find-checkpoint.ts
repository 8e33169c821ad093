import { StudioError } from '../../../engine/errors.ts';
import { confine, isInside, quote } from '../../data-folder.ts';
import type { CheckpointRow } from '../../runs/run-store.ts';
import type { ApiRequest } from '../router.ts';
import type { Services } from '../services.ts';

/**
 * The checkpoint that an address names, and where it is. The name is looked up in the listing, never made into a path;
 * what is there may still be somebody's link. Throws `not-found` or `forbidden`.
 */
export async function findCheckpoint(
  { store, folder }: Pick<Services, 'store' | 'folder'>,
  { id, name }: ApiRequest['params'],
): Promise<{ readonly row: CheckpointRow; readonly path: string }> {
  const row = await store.findCheckpoint(id, name);
  if (!row) throw new StudioError('not-found', `This run has no checkpoint ${quote(name)}.`);
  const place = `runs/${row.runId}/checkpoints`;
  const path = await confine(folder.root, `${place}/${row.name}`);
  if (!isInside(`${folder.root}/${place}`, path))
    throw new StudioError('forbidden', `The checkpoint ${quote(row.name)} leaves its run's folder.`);
  return { row, path };
}
