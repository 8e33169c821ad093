/** Which checkpoint: one that a run saved, or, of no run, one that was brought. */
export interface CheckpointRef {
  readonly runId: string | null;
  readonly name: string;
}

/** The list that it is in: its run's page, or the library. */
export const listUrl = ({ runId }: Pick<CheckpointRef, 'runId'>): string =>
  runId === null ? '/checkpoints' : `/runs/${encodeURIComponent(runId)}`;

export const checkpointPageUrl = ({ runId, name }: CheckpointRef): string =>
  `${runId === null ? '' : listUrl({ runId })}/checkpoints/${encodeURIComponent(name)}`;

/** Where a config points to it. */
export const checkpointDataPath = ({ runId, name }: CheckpointRef): string =>
  runId === null ? `uploads/${name}` : `runs/${runId}/checkpoints/${name}`;

/** The checkpoint that was brought and lies at this path of the data folder; null for any other path. */
export function broughtAt(path: string): CheckpointRef | null {
  const [, name] = /^uploads\/([^/]+)$/.exec(path) ?? [];
  return name === undefined ? null : { runId: null, name };
}

/** How a run starts from a checkpoint: it goes on where that stopped, or it begins with its weights. */
export type StartUse = 'resume' | 'init';

/** The form for such a run, filled in with the settings of the checkpoint's run, or those that it holds itself. */
export function startUrl(checkpoint: CheckpointRef, use: StartUse): string {
  const query = new URLSearchParams(checkpoint.runId === null ? {} : { from: checkpoint.runId });
  query.set(use, checkpointDataPath(checkpoint));
  return `/runs/new?${query}`;
}
