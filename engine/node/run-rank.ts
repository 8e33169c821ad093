import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { type FullCheckpoint, writeFullCheckpoint } from '../checkpoint/full-checkpoint.ts';
import { writeSafetensors } from '../checkpoint/safetensors.ts';
import { openWeights, type WeightsFile } from '../checkpoint/weights-file.ts';
import { openInProcessMailboxes, openSoloMailbox } from '../comm/in-process.ts';
import type { Mailbox } from '../comm/mailbox.ts';
import type { ExperimentConfig } from '../config.ts';
import { StudioError } from '../errors.ts';
import { Interpreter } from '../interpret/interpreter.ts';
import { buildModel } from '../model/build-model.ts';
import type { ParameterSpec } from '../model/model.ts';
import { adapterProfile, openDevice } from '../runtime/device.ts';
import { Executor } from '../runtime/executor.ts';
import { type CompiledRun, compileRun } from '../schedule/compile.ts';
import { predictionOf } from '../schedule/plan.ts';
import { type AdapterProfile, builtInProfiles } from '../schedule/profile.ts';
import type { RankEngine } from '../schedule/rank-engine.ts';
import { Recorder } from '../schedule/recorder.ts';
import type { CheckpointRecord, RunEvent } from '../trainer/events.ts';
import { drainParts, gatherPart, partsInOrder, type SavingRank } from '../trainer/full-save.ts';
import { memorySummary } from '../trainer/memory-summary.ts';
import { expectedShapes, fillRank, freshParameters, type ParameterSource } from '../trainer/state.ts';
import { type RankResult, trainerRegions, trainRank } from '../trainer/train-rank.ts';
import { openAdapter } from './adapters.ts';
import { createFileSink, type FileSource, openFileSource } from './file-bytes.ts';
import type { WorkerPhase } from './heartbeat.ts';
import { checkHostRoom } from './host-room.ts';
import { openRunData, type RunData } from './run-data.ts';
import { openSharedMailbox } from './shared-memory.ts';
import type { WorkerStart } from './worker-protocol.ts';

/** The longest that a rank waits for a peer: a save of a large model to a slow disk is within it. */
const PEER_TIMEOUT_MS = 600_000;

/** What a worker hears of while its ranks run. */
export interface RunHooks {
  readonly emit: (event: RunEvent) => void;
  readonly stopRequested: () => boolean;
  readonly onPhase: (phase: WorkerPhase, step: number | null) => void;
}

export interface WorkerResult {
  readonly ranks: readonly { readonly engine: RankEngine; readonly result: RankResult; readonly rank: number }[];
}

/** Where the ranks of this process run. */
interface Place {
  readonly profile: AdapterProfile;
  readonly adapter: { readonly name: string; readonly pciId: string | null; readonly software: boolean };
  open(run: CompiledRun, mailbox: Mailbox): Promise<RankEngine>;
}

/** Runs the ranks of one worker process from start to end. Throws StudioError. */
export async function runWorkerRanks(start: WorkerStart, hooks: RunHooks): Promise<WorkerResult> {
  const { config, ranks } = start;
  hooks.onPhase('preparing the data', null);
  const data = await openRunData(config, start.corpusFolder);
  hooks.onPhase('planning', null);
  const model = buildModel(config.model, data.vocabSize);
  const place = await openPlace(start);
  const runs = ranks.map((rank) => compileRun({ config, model, shapes: data.shapes, rank, profile: place.profile }));
  const { software } = place.adapter;
  const alone = ranks.length === start.world;
  const { sharedFolder } = start;
  await checkHostRoom({ config, run: runs[0], software, alone, sharedFolder, timeoutMs: PEER_TIMEOUT_MS });
  const mailboxes = await openMailboxes(start, runs, place, hooks);
  const source = await openSource(config, runs[0]);
  try {
    if (ranks.includes(0)) announce(start, runs[0], place, hooks);
    hooks.onPhase('compiling', null);
    const engines = await Promise.all(runs.map((run, i) => place.open(run, mailboxes[i])));
    const results = await Promise.all(
      engines.map((engine, i) => runRank({ start, data, hooks, place, source }, runs[i], engine, mailboxes[i])),
    );
    return { ranks: results.map((result, i) => ({ engine: engines[i], result, rank: ranks[i] })) };
  } catch (error) {
    for (const mailbox of mailboxes) mailbox.fail(error instanceof Error ? error.message : String(error));
    throw error;
  } finally {
    await source.close();
  }
}

interface Setting {
  readonly start: WorkerStart;
  readonly data: RunData;
  readonly hooks: RunHooks;
  readonly place: Place;
  readonly source: WeightsSource;
}

async function runRank(s: Setting, run: CompiledRun, engine: RankEngine, mailbox: Mailbox): Promise<RankResult> {
  const { start, hooks } = s;
  hooks.onPhase('filling', null);
  await fillRank(engine, run, s.source.parameters);
  const result = await trainRank({
    config: start.config,
    run,
    engine,
    mailbox,
    batches: s.data.batches,
    validation: s.data.validation,
    writeCheckpoint: (checkpoint, step) => writeCheckpointFile(start, checkpoint, step),
    emit: hooks.emit,
    stopRequested: hooks.stopRequested,
    onPhase: hooks.onPhase,
  });
  if (start.weightsFile !== null) await saveWeights(start.weightsFile, { run, engine, mailbox, config: start.config });
  const device = { id: run.rank, name: s.place.adapter.name };
  hooks.emit({
    event: 'summary',
    rank: run.rank,
    text: memorySummary(run, result.stepsByShape, engine.memory(), device),
  });
  return result;
}

/** The first event of a run, with what was predicted before any of it is measured. */
function announce(
  { config, world }: WorkerStart,
  run: CompiledRun,
  { profile, adapter }: Place,
  hooks: RunHooks,
): void {
  const { params, peakBytes, liveBytes, byCategory } = predictionOf(run, profile);
  const adapters = Array.from({ length: world }, () => adapter);
  hooks.emit({ event: 'start', params, world, adapters, predicted: { peakBytes, liveBytes, byCategory } });
  const log = (line: string) => hooks.emit({ event: 'log', rank: null, line });
  if (world > 1) log(`${world} ranks share one adapter, ${adapter.name}`);
  if (config.checkpoint.format === null && (config.checkpoint.atEnd || config.checkpoint.every !== null))
    log('checkpoint.format is not set: a full checkpoint is written');
  const { memoryBudgetMiB } = config;
  if (memoryBudgetMiB !== null && peakBytes > memoryBudgetMiB * 2 ** 20) refuseBudget(run, peakBytes, memoryBudgetMiB);
}

function refuseBudget(run: CompiledRun, peakBytes: number, budgetMiB: number): never {
  const needMiB = Math.ceil(peakBytes / 2 ** 20);
  throw new StudioError(
    'out-of-memory',
    `memoryBudgetMiB: a rank needs ${needMiB} MiB and may have ${budgetMiB}. Use more devices, FULL_SHARD, or a smaller ` +
      'model or batch',
    { rank: run.rank, needBytes: peakBytes, budgetMiB },
  );
}

async function openPlace({ adapterId, ranks, recordTouches }: WorkerStart): Promise<Place> {
  const recorder = () => (recordTouches ? { recorder: new Recorder() } : {});
  if (adapterId === 'interpreter')
    return {
      profile: builtInProfiles.interpreter,
      adapter: { name: 'interpreter', pciId: null, software: true },
      open: async (run, mailbox) => new Interpreter(run, mailbox, recorder()),
    };
  if (ranks.length > 1) throw new StudioError('internal', 'a worker on an adapter runs one rank');
  const { adapter, entry } = await openAdapter(adapterId);
  const open = await openDevice(adapter);
  return {
    profile: adapterProfile(adapter, entry.name, entry.software),
    adapter: { name: entry.name, pciId: entry.pciId, software: entry.software },
    open: async (run, mailbox) => {
      const engine = await Executor.create(run, open, mailbox, recorder());
      open.kernels.seal();
      return engine;
    },
  };
}

async function openMailboxes(
  { ranks, world, sharedFolder }: WorkerStart,
  runs: readonly CompiledRun[],
  place: Place,
  hooks: RunHooks,
): Promise<Mailbox[]> {
  const regions = trainerRegions(runs[0]);
  if (world === 1) return [openSoloMailbox(regions)];
  if (ranks.length === world) return openInProcessMailboxes(world, regions, { timeoutMs: PEER_TIMEOUT_MS });
  const mailbox = await openSharedMailbox({
    path: sharedFolder,
    rank: ranks[0],
    worldSize: world,
    regions,
    timeoutMs: PEER_TIMEOUT_MS,
    spin: !place.adapter.software,
    onNotice: (line) => hooks.emit({ event: 'log', rank: ranks[0], line }),
  });
  return [mailbox];
}

interface WeightsSource {
  readonly parameters: ParameterSource;
  close(): Promise<void>;
}

/** Where the parameters start: fresh from the seed, or a weights file, of which each rank reads only its own rows. */
async function openSource(config: ExperimentConfig, run: CompiledRun): Promise<WeightsSource> {
  const { from } = config.init;
  if (from === null) return { parameters: freshParameters(config.trainer.seed), close: async () => undefined };
  const file: FileSource = await openFileSource(from);
  try {
    const expected = expectedShapes(run.model);
    const weights = await openWeights(file, { expectedNames: expected.keys() });
    weights.checkShapes(expected, new Set(run.model.tied?.map(({ name }) => name)));
    return { parameters: rowsFrom(weights), close: () => file.close() };
  } catch (error) {
    await file.close();
    throw error;
  }
}

/** Flat elements of a tensor by way of the whole rows that contain them. */
function rowsFrom(weights: WeightsFile): ParameterSource {
  return async ({ name, shape }: ParameterSpec, first, count) => {
    if (shape.length === 0) return weights.readFloat32(name);
    const rowLength = shape.slice(1).reduce((a, b) => a * b, 1);
    const row = Math.floor(first / rowLength);
    const rows = Math.ceil((first + count) / rowLength) - row;
    const values = await weights.readRows(name, row, rows);
    return values.slice(first - row * rowLength, first - row * rowLength + count);
  };
}

async function writeCheckpointFile(
  { runFolder }: WorkerStart,
  checkpoint: FullCheckpoint,
  step: number,
): Promise<CheckpointRecord> {
  const folder = join(runFolder, 'checkpoints');
  await mkdir(folder, { recursive: true });
  const sink = await createFileSink(join(folder, `step-${String(step).padStart(6, '0')}.ckpt`));
  try {
    await writeFullCheckpoint(checkpoint, sink);
    const { path, sha256 } = await sink.commit();
    return { path, format: 'full', step, sha256 };
  } catch (error) {
    await sink.abort();
    throw error;
  }
}

/** Every rank's weights as one safetensors file, written by rank 0. */
async function saveWeights(
  path: string,
  rank: { run: CompiledRun; engine: RankEngine; mailbox: Mailbox; config: ExperimentConfig },
): Promise<void> {
  const { run, config } = rank;
  const saving: SavingRank = { ...rank, region: run.regions.length + 1, optimizer: config.optimizer };
  if (run.rank !== 0) return drainParts(saving, partsInOrder(run, config.optimizer, 0));
  const sink = await createFileSink(path);
  await writeSafetensors(
    run.model.parameters.map(({ name, shape }) => ({
      name,
      dtype: 'float32' as const,
      shape,
      chunks: () => gatherPart(saving, name, 'param'),
    })),
    sink,
  );
  await sink.commit();
}
