import { lstat } from 'node:fs/promises';
import { isDeepStrictEqual } from 'node:util';
import type { ExperimentConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import type { Model } from '../model/model.ts';
import type { VariantChoices } from '../ops/kernel.ts';
import { freshStart, resumeFrom, type StartState, startFromWeights } from '../trainer/start-state.ts';
import { listCheckpoints, removeCheckpointLeftovers } from './checkpoint-list.ts';
import { openCheckpointPath } from './checkpoint-path.ts';
import { checkpointsFolder } from './checkpoint-store.ts';
import { verifyCheckpoint } from './checkpoint-verify.ts';
import { absent, naming } from './file-bytes.ts';

export interface OpenedStart extends StartState {
  close(): Promise<void>;
}

/**
 * Where a run begins: fresh from the seed, from the weights at init.from, or where the checkpoint at checkpoint.resume was
 * left. A file or a folder, of any world size. Each rank later reads only its own rows. Throws StudioError for what does not
 * fit, and where nothing is left to train.
 */
export async function openStart(config: ExperimentConfig, model: Model): Promise<OpenedStart> {
  const { init, checkpoint, trainer } = config;
  const path = checkpoint.resume ?? init.from;
  if (path === null) return { ...freshStart(trainer.seed), close: async () => undefined };
  const expectedNames = model.parameters.map(({ name }) => name);
  const { checkpoint: stored, close } = await openCheckpointPath(path, { expectedNames });
  try {
    if (checkpoint.resume === null) return { ...startFromWeights(stored, config, model), close };
    const start = await resumeFrom(stored, config, model);
    if (start.step >= trainer.steps)
      throw new StudioError(
        'invalid-config',
        `trainer.steps: ${path} has ${start.step} steps done and trainer.steps is ${trainer.steps}, which counts them ` +
          'too. Raise it to train on',
        { steps: trainer.steps, done: start.step },
      );
    return { ...start, close };
  } catch (error) {
    await close();
    throw error;
  }
}

/**
 * What rank 0 sees to before a run begins: that what is loaded is what was written, by its digests; that no checkpoint of
 * an earlier run in the same folder will be in the way; and that what a killed writer left there is gone.
 */
export async function checkStart(config: ExperimentConfig, runFolder: string, step: number): Promise<void> {
  const loaded = config.checkpoint.resume ?? config.init.from;
  if (loaded !== null) await verifyCheckpoint(loaded);
  const folder = checkpointsFolder(runFolder);
  const listed = await listCheckpoints(folder);
  const later = listed.find((checkpoint) => checkpoint.step > step);
  if (later)
    throw new StudioError(
      'conflict',
      `${later.path} is of an earlier run, which had gone on further than step ${step}, where this one begins. Resume ` +
        'from the latest, or choose another folder for this run',
      { path: later.path },
    );
  if ((await naming(folder, () => lstat(folder).catch(absent))) !== null) await removeCheckpointLeftovers(folder);
}

/**
 * The kernel variants of a run on an adapter, and what the log says of them: those that the interrupted run had there,
 * else `chosen`, what the adapter's tuner says today.
 */
export function variantsFor(
  { kernels }: Pick<StartState, 'kernels'>,
  { name, driver }: { readonly name: string; readonly driver: string },
  chosen: VariantChoices,
): { readonly variants: VariantChoices; readonly note: string | null } {
  if (kernels === null || isDeepStrictEqual({ ...kernels.variants }, { ...chosen }))
    return { variants: chosen, note: null };
  if (kernels.adapter === name && kernels.driver === driver)
    return {
      variants: kernels.variants,
      note: "the kernel variants are the checkpoint's, not those that were chosen for this adapter since",
    };
  const was = `${kernels.adapter}, driver ${kernels.driver}`;
  return {
    variants: chosen,
    note: `the checkpoint is from another adapter (${was}): the kernel variants are those chosen for ${name}, driver ${driver}`,
  };
}

/** The run as it is compiled: the table of Adam's corrections reaches as far as t will. */
export function withRoomForUpdates(config: ExperimentConfig, start: StartState): ExperimentConfig {
  const { trainer } = config;
  const last = start.optimizer.updates + trainer.steps - start.step;
  return last <= trainer.steps ? config : { ...config, trainer: { ...trainer, steps: last } };
}

/** What the log says of a start. */
export function startNotes(config: ExperimentConfig, start: StartState): string[] {
  const { init, checkpoint } = config;
  const path = checkpoint.resume ?? init.from;
  if (path === null) return [];
  const goesOn = `goes on after step ${start.step - 1} of ${path}, ${start.samples ?? 'an unknown number of'} samples consumed`;
  return [
    checkpoint.resume === null ? `the weights are those of ${path}` : goesOn,
    ...start.notes.map((note) => `${path}: ${note}`),
  ];
}
