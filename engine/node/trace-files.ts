import { mkdir, readdir, readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { StudioError } from '../errors.ts';
import { RankTrace } from '../trainer/rank-trace.ts';
import { absent, naming, writeSynced } from './file-bytes.ts';

/** In a run's folder: traces/step-000002.rank-0.json, one for each rank. */
const FOLDER = 'traces';
const NAME = /^step-(\d+)\.rank-(\d+)\.json$/;

const nameOf = (step: number, rank: number) => `step-${String(step).padStart(6, '0')}.rank-${rank}.json`;

/**
 * The step that a run which makes steps `start` to `end` - 1 traces: the one asked for, or the third, in which nothing happens
 * for the first time (the last, of fewer). Throws StudioError `invalid-config` where the run does not make it.
 */
export function stepToTrace(
  asked: { readonly step: number | null } | undefined,
  start: number,
  end: number,
): number | null {
  if (!asked) return null;
  const step = asked.step ?? Math.min(start + 2, end - 1);
  if (step >= start && step < end) return step;
  throw new StudioError(
    'invalid-config',
    `step ${step} cannot be traced: this run makes steps ${start} to ${end - 1}, counted from 0`,
  );
}

/** Milliseconds on the clock that all processes of this machine share. */
export function machineClockMs(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

/** Writes a rank's trace, whole or not at all; an older one of the step is replaced. */
export async function writeRankTrace(runFolder: string, trace: RankTrace): Promise<void> {
  const folder = join(runFolder, FOLDER);
  const file = join(folder, nameOf(trace.step, trace.rank));
  await naming(file, async () => {
    await mkdir(folder, { recursive: true });
    const draft = `${file}.part-${process.pid}-${Date.now()}`;
    await writeSynced(draft, JSON.stringify(trace));
    await rename(draft, file);
  });
}

/** The steps of training of which all `world` ranks' traces are there, in order. */
export async function listTraces(runFolder: string, world: number): Promise<number[]> {
  const names = (await readdir(join(runFolder, FOLDER)).catch(absent)) ?? [];
  const ranksOf = new Map<number, number>();
  for (const name of names) {
    const match = NAME.exec(name);
    if (match && Number(match[2]) < world) ranksOf.set(Number(match[1]), (ranksOf.get(Number(match[1])) ?? 0) + 1);
  }
  const whole = [...ranksOf].filter(([, ranks]) => ranks === world);
  return whole.map(([step]) => step).sort((a, b) => a - b);
}

/** All ranks' traces of a step. Throws StudioError `not-found` where one is missing, `bad-file` where one is no trace. */
export async function readTraces(runFolder: string, world: number, step: number): Promise<RankTrace[]> {
  return Promise.all(
    Array.from({ length: world }, async (_, rank) => {
      const file = join(runFolder, FOLDER, nameOf(step, rank));
      const text = await naming(file, () => readFile(file, 'utf8'));
      try {
        return RankTrace.parse(JSON.parse(text));
      } catch (cause) {
        throw new StudioError('bad-file', `${file} is no trace of a step.`, { file }, { cause });
      }
    }),
  );
}
