/** The form for a run that goes on from a checkpoint of another, whose settings it starts with. */
export const continueUrl = (runId: string, checkpointPath: string): string =>
  `/runs/new?from=${encodeURIComponent(runId)}&resume=${encodeURIComponent(checkpointPath)}`;
