import { StudioError } from '../../../engine/errors.ts';
import { confine, isInside, quote } from '../../data-folder.ts';
import { toRun } from '../../runs/run-store.ts';
import { sendFile } from '../file-response.ts';
import type { Route } from '../router.ts';
import type { Services } from '../services.ts';

/** The checkpoints of a run: their list, and each as a download. */
export function checkpointRoutes({ store, folder }: Services): Route[] {
  return [
    {
      method: 'GET',
      path: '/runs/:id/checkpoints',
      async handle({ params }) {
        const { checkpoints } = toRun(await store.get(params.id), await store.checkpoints(params.id));
        return { status: 200, body: { checkpoints } };
      },
    },
    {
      method: 'GET',
      path: '/runs/:id/checkpoints/:name',
      async handle({ params, raw, response }) {
        // The name is looked up in the listing, never made into a path; what is there may still be somebody's link.
        const row = await store.findCheckpoint(params.id, params.name);
        if (!row) throw new StudioError('not-found', `This run has no checkpoint ${quote(params.name)}.`);
        const place = `runs/${row.runId}/checkpoints`;
        const path = await confine(folder.root, `${place}/${row.name}`);
        if (!isInside(`${folder.root}/${place}`, path))
          throw new StudioError('forbidden', `The checkpoint ${quote(row.name)} leaves its run's folder.`);
        const { name } = await store.get(row.runId);
        const saved = `${name.replaceAll(/[^\p{L}\p{N}._-]+/gu, '-').slice(0, 60)}-${row.name}`;
        await sendFile(raw, response, { path, name: saved, sha256: row.sha256 });
        return 'streamed';
      },
    },
  ];
}
