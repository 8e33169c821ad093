import { dirname } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { writeSafetensors } from '../checkpoint/safetensors.ts';
import type { RunKernels } from '../checkpoint/stored-checkpoint.ts';
import { exchange } from '../comm/exchange.ts';
import { exchangeTexts } from '../comm/exchange-texts.ts';
import { openInProcessMailboxes, openSoloMailbox } from '../comm/in-process.ts';
import type { Mailbox } from '../comm/mailbox.ts';
import { linkWords } from '../comm/simulated-link.ts';
import { checkpointFormat, type ExperimentConfig } from '../config.ts';
import type { BatchStream } from '../data/samples.ts';
import { StudioError } from '../errors.ts';
import { Interpreter } from '../interpret/interpreter.ts';
import { buildModel } from '../model/build-model.ts';
import type { Model } from '../model/model.ts';
import type { VariantChoices } from '../ops/kernel.ts';
import { adapterProfile, type OpenDevice, openDevice } from '../runtime/device.ts';
import { Executor } from '../runtime/executor.ts';
import { offersTensorCores, tensorCoreProblem } from '../runtime/tensor-cores.ts';
import { refuseOverBudget } from '../schedule/budget.ts';
import { type CompiledRun, compileRun } from '../schedule/compile.ts';
import { RESOURCE_WORDS } from '../schedule/cost.ts';
import { ratesWords, timeWords } from '../schedule/estimate-words.ts';
import { type Prediction, predictionOf } from '../schedule/plan.ts';
import { precisionOf } from '../schedule/precision.ts';
import { type AdapterProfile, builtInProfiles } from '../schedule/profile.ts';
import type { RankEngine } from '../schedule/rank-engine.ts';
import { Recorder } from '../schedule/recorder.ts';
import type { SavedPart } from '../trainer/describe-checkpoint.ts';
import type { RunEvent } from '../trainer/events.ts';
import { drainParts, gatherPart, type SavingRank } from '../trainer/full-save.ts';
import { memorySummary } from '../trainer/memory-summary.ts';
import { fillRank } from '../trainer/state.ts';
import { engineReader } from '../trainer/state-reader.ts';
import { type RankResult, trainerRegions, trainRank } from '../trainer/train-rank.ts';
import { openAdapter } from './adapters.ts';
import { readCalibration } from './calibration-store.ts';
import { folderStore } from './checkpoint-store.ts';
import { refuseOtherDevice } from './device-check.ts';
import type { WorkerPhase } from './heartbeat.ts';
import { checkHostRoom } from './host-room.ts';
import { mappedView } from './mapped-view.ts';
import { checkStart, type OpenedStart, openStart, startNotes, variantsFor, withRoomForUpdates } from './open-start.ts';
import { parallelCopy } from './parallel-copy.ts';
import { openRunData, type RunData } from './run-data.ts';
import { openSharedMailbox } from './shared-memory.ts';
import { machineClockMs, stepToTrace, writeRankTrace } from './trace-files.ts';
import { readVariants } from './variant-store.ts';
import { createFileSink } from './whole-file.ts';
import type { WorkerStart } from './worker-protocol.ts';

/** The longest that a rank waits for a peer: a save of a large model to a slow disk is within it. */
const PEER_TIMEOUT_MS = 600_000;

/** What a worker hears of while its ranks run. */
export interface RunHooks {
  readonly emit: (event: RunEvent) => void;
  readonly stopRequested: () => boolean;
  /** How often the worker was asked to save. */
  readonly savesRequested?: () => number;
  /** And to trace a step. */
  readonly tracesRequested?: () => number;
  readonly onPhase: (phase: WorkerPhase, step: number | null) => void;
}

export interface WorkerResult {
  readonly ranks: readonly { readonly engine: RankEngine; readonly result: RankResult; readonly rank: number }[];
}

/** An adapter as a run's first event names it. */
interface PlaceAdapter {
  readonly name: string;
  readonly pciId: string | null;
  readonly software: boolean;
}

/** Where the ranks of this process run. */
interface Place {
  readonly profile: AdapterProfile;
  readonly adapter: PlaceAdapter;
  /** What the run's log should say of the adapter. */
  readonly notes: readonly string[];
  /** What a checkpoint says of it. */
  readonly kernels?: RunKernels;
  open(run: CompiledRun, mailbox: Mailbox): Promise<RankEngine>;
}

/** Runs the ranks of one worker process from start to end. Throws StudioError. */
export async function runWorkerRanks(start: WorkerStart, hooks: RunHooks): Promise<WorkerResult> {
  const { config } = start;
  hooks.onPhase('preparing the data', null);
  const data = await openRunData(config, start.corpusFolder);
  const model = buildModel(config.model, data.vocabSize);
  const origin = await openStart(config, model);
  try {
    return await runFrom(origin, model, data, start, hooks);
  } finally {
    await origin.close();
  }
}

async function runFrom(
  origin: OpenedStart,
  model: Model,
  data: RunData,
  start: WorkerStart,
  hooks: RunHooks,
): Promise<WorkerResult> {
  const { ranks, sharedFolder } = start;
  hooks.onPhase('planning', null);
  const config = withRoomForUpdates(start.config, origin);
  let place = await openPlace(start, origin);
  const { batches, shapes } = data.from(origin.step, origin.samples);
  const compiled = ({ profile }: Place) => ranks.map((rank) => compileRun({ config, model, shapes, rank, profile }));
  let runs = compiled(place);
  const { software } = place.adapter;
  const alone = ranks.length === start.world;
  await checkHostRoom({ config, run: runs[0], software, alone, sharedFolder, timeoutMs: PEER_TIMEOUT_MS });
  const mailboxes = await openMailboxes(start, runs, place, hooks);
  try {
    const { adapters, variants } = await placesOfRanks(start, runs[0], place, mailboxes[0]);
    if (!isDeepStrictEqual(variants, variantsOf(place))) {
      // Nothing that the ranks exchange depends on them.
      place = withVariants(place, variants);
      runs = compiled(place);
      hooks.emit({ event: 'log', rank: ranks[0], line: "the kernel variants are rank 0's, whose adapter is another" });
    }
    if (ranks.includes(0)) {
      announce(start, origin, runs[0], place, adapters, hooks);
      await checkStart(start.config, start.runFolder, origin.step);
    }
    hooks.onPhase('compiling', null);
    const engines = await Promise.all(runs.map((run, i) => place.open(run, mailboxes[i])));
    const setting = { start, data, batches, hooks, place, origin };
    const results = await Promise.all(engines.map((engine, i) => runRank(setting, runs[i], engine, mailboxes[i])));
    return { ranks: results.map((result, i) => ({ engine: engines[i], result, rank: ranks[i] })) };
  } catch (error) {
    for (const mailbox of mailboxes) mailbox.fail(error instanceof Error ? error.message : String(error));
    throw error;
  }
}

interface Setting {
  readonly start: WorkerStart;
  readonly data: RunData;
  readonly batches: BatchStream;
  readonly hooks: RunHooks;
  readonly place: Place;
  readonly origin: OpenedStart;
}

async function runRank(s: Setting, run: CompiledRun, engine: RankEngine, mailbox: Mailbox): Promise<RankResult> {
  const { start, hooks, origin } = s;
  hooks.onPhase('filling', null);
  await fillRank(engine, run, origin.parameters, origin.optimizer);
  const result = await trainRank({
    config: start.config,
    run,
    engine,
    mailbox,
    batches: s.batches,
    validation: s.data.validation,
    startStep: origin.step,
    checkpoints: folderStore(start.runFolder),
    kernels: s.place.kernels,
    traces: {
      step: stepToTrace(start.trace, origin.step, start.config.trainer.steps),
      requested: hooks.tracesRequested,
      clockOffsetMs: machineClockMs() - performance.now(),
      save: (trace) => writeRankTrace(start.runFolder, trace),
    },
    emit: hooks.emit,
    stopRequested: hooks.stopRequested,
    savesRequested: hooks.savesRequested,
    onPhase: hooks.onPhase,
  });
  if (start.weightsFile !== null) {
    hooks.onPhase('saving', result.stepsDone);
    await saveWeights(start.weightsFile, { run, engine, mailbox });
  }
  const device = { id: run.rank, name: s.place.adapter.name };
  hooks.emit({
    event: 'summary',
    rank: run.rank,
    text: memorySummary(run, result.stepsByShape, engine.memory(), device),
  });
  if (result.unsaved) {
    // Training went on in spite of it, and the weights are written by now; the run has not given what it was to give.
    await exchange(mailbox, run.regions.length, [0]);
    throw result.unsaved;
  }
  return result;
}

/**
 * The adapter that each rank got, in rank order, as the ranks themselves say, and the kernel variants of rank 0: they differ
 * in the last bits, so one rank decides for all.
 */
async function placesOfRanks(
  { ranks, world }: WorkerStart,
  run: CompiledRun,
  place: Place,
  mailbox: Mailbox,
): Promise<{ readonly adapters: readonly PlaceAdapter[]; readonly variants: VariantChoices }> {
  const { adapter } = place;
  const variants = variantsOf(place);
  if (ranks.length === world) return { adapters: ranks.map(() => adapter), variants };
  const regions = { sizes: run.regions.length, pieces: run.regions.length + 1 };
  const texts = await exchangeTexts(mailbox, regions, JSON.stringify({ adapter, variants }));
  const said = texts.map((text) => JSON.parse(text) as { adapter: PlaceAdapter; variants: VariantChoices });
  return { adapters: said.map((each) => each.adapter), variants: said[0].variants };
}

const variantsOf = ({ profile }: Place): VariantChoices => ({ ...profile.variants });

function withVariants(place: Place, variants: VariantChoices): Place {
  const { profile, kernels } = place;
  return { ...place, profile: { ...profile, variants }, ...(kernels && { kernels: { ...kernels, variants } }) };
}

/** The first event of a run, with what was predicted before any of it is measured. */
function announce(
  { config, world }: WorkerStart,
  origin: OpenedStart,
  run: CompiledRun,
  { profile, notes }: Place,
  adapters: readonly PlaceAdapter[],
  hooks: RunHooks,
): void {
  const places = new Set(adapters.map(({ name, pciId }) => `${name} ${pciId}`));
  const prediction = predictionOf(run, { ...profile, alike: places.size });
  const { params, peakBytes, liveBytes, byCategory, estimateMs, boundBy } = prediction;
  hooks.emit({
    event: 'start',
    params,
    world,
    adapters: [...adapters],
    predicted: { peakBytes, liveBytes, byCategory, estimateMs, boundBy, calibrated: profile.calibrated === true },
    ...(profile.variants && Object.keys(profile.variants).length > 0 && { variants: { ...profile.variants } }),
  });
  const log = (line: string) => hooks.emit({ event: 'log', rank: null, line });
  if (places.size < world)
    log(`${world} ranks share ${places.size === 1 ? 'one adapter' : `${places.size} adapters`}, ${adapters[0].name}`);
  if (config.checkpoint.format === null && (config.checkpoint.atEnd || config.checkpoint.every !== null))
    log(`checkpoint.format is not set: checkpoints are ${checkpointFormat(config)}`);
  for (const note of notes) log(note);
  if (config.strategy.kind === 'fsdp' && config.strategy.linkGBps !== null)
    log(`between the rows of the mesh: ${linkWords(config.strategy.linkGBps)}`);
  log(estimateNote(prediction, profile));
  for (const said of startNotes(config, origin)) log(said);
  refuseOverBudget(config, run, profile);
  if (run.hidden === 'again')
    log(
      `memoryBudgetMiB ${config.memoryBudgetMiB}: hidden layers are computed again in backward, for which a step takes ` +
        'longer, since what keeps them would not fit',
    );
  if (run.slotWaits > 0)
    log(
      `memoryBudgetMiB ${config.memoryBudgetMiB}: ${run.slotWaits} all-gathers of each step wait for a slot, counted as ` +
        'allocation retries; switch strategy.limitAllGathers on',
    );
}

function estimateNote({ estimateMs, boundBy }: Prediction, profile: AdapterProfile): string {
  return `a step is estimated at ${timeWords(estimateMs ?? 0)}, most of it ${RESOURCE_WORDS[boundBy]}, by ${ratesWords(profile)}`;
}

async function openPlace(start: WorkerStart, origin: OpenedStart): Promise<Place> {
  const { adapterId, ranks, recordTouches, corpusFolder, config } = start;
  const recorder = () => (recordTouches ? { recorder: new Recorder() } : {});
  if (adapterId === 'interpreter')
    return {
      profile: builtInProfiles.interpreter,
      adapter: { name: 'interpreter', pciId: null, software: true },
      notes: [],
      open: async (run, mailbox) => new Interpreter(run, mailbox, recorder()),
    };
  if (ranks.length > 1) throw new StudioError('internal', 'a worker on an adapter runs one rank');
  const { adapter, entry } = await openAdapter(adapterId);
  const open = await openDevice(adapter);
  if (!entry.software) await refuseOtherDevice(entry, open.device);
  // In the data folder, beside the corpora.
  const dataFolder = dirname(corpusFolder);
  const rates = await readCalibration(dataFolder, entry);
  const { tensorCores, note } = await tensorCoresFor(config, adapter, open);
  const kept = variantsFor(origin, entry, readVariants(dataFolder, entry));
  return {
    profile: { ...adapterProfile(adapter, entry.name, entry.software, rates), tensorCores, variants: kept.variants },
    adapter: { name: entry.name, pciId: entry.pciId, software: entry.software },
    notes: [entry.software ? null : note, kept.note].filter((line) => line !== null),
    kernels: { adapter: entry.name, driver: entry.driver, variants: kept.variants },
    open: async (run, mailbox) => {
      const copy = entry.software ? {} : { copy: parallelCopy, view: mappedView };
      const engine = await Executor.create(run, open, mailbox, { ...recorder(), ...copy });
      open.kernels.seal();
      return engine;
    },
  };
}

/** Whether a run's products of halves may go to tensor cores, and why not. They are tried first: not every driver's are right. */
async function tensorCoresFor(
  config: ExperimentConfig,
  adapter: GPUAdapter,
  open: OpenDevice,
): Promise<{ readonly tensorCores: boolean; readonly note: string | null }> {
  if (precisionOf(config).used !== 'f16') return { tensorCores: false, note: null };
  const instead = 'halves are multiplied as float32';
  if (!offersTensorCores(adapter))
    return { tensorCores: false, note: `this adapter offers no tensor cores: ${instead}` };
  const problem = await tensorCoreProblem(open);
  if (problem)
    return { tensorCores: false, note: `the tensor cores of this adapter are not used (${problem}): ${instead}` };
  return { tensorCores: true, note: 'products of halves run on tensor cores' };
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

/** Every rank's weights as one safetensors file, written by rank 0. */
async function saveWeights(
  path: string,
  rank: { run: CompiledRun; engine: RankEngine; mailbox: Mailbox },
): Promise<void> {
  const { run, engine, mailbox } = rank;
  const saving: SavingRank = { run, mailbox, region: run.regions.length + 1, read: engineReader(engine) };
  const parts = run.model.parameters.map(({ name }): SavedPart => ({ name, part: 'param' }));
  if (run.rank !== 0) return drainParts(saving, parts);
  const sink = await createFileSink(path);
  try {
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
  } catch (error) {
    await sink.abort().catch(() => undefined);
    throw error;
  }
}
