import { join, resolve } from 'node:path';
import { linkWords } from '../../engine/comm/simulated-link.ts';
import type { ExperimentConfig } from '../../engine/config.ts';
import { configHints } from '../../engine/config-hints.ts';
import { counted } from '../../engine/counted.ts';
import { createBatchesStream } from '../../engine/data/batches.ts';
import { buildModel } from '../../engine/model/build-model.ts';
import { discoverAdapters, findAdapter } from '../../engine/node/adapters.ts';
import { readBatchesFile } from '../../engine/node/batches-file.ts';
import { readCalibration } from '../../engine/node/calibration-store.ts';
import { openRunData } from '../../engine/node/run-data.ts';
import { budgetVerdict, overflowMessage } from '../../engine/schedule/budget.ts';
import { RESOURCE_WORDS, RESOURCES } from '../../engine/schedule/cost.ts';
import { ratesWords, timeWords } from '../../engine/schedule/estimate-words.ts';
import { type Prediction, planExperiment, type ValidationPass } from '../../engine/schedule/plan.ts';
import { type AdapterProfile, builtInProfiles, type ProfileLimits, profileOf } from '../../engine/schedule/profile.ts';
import { CATEGORIES } from '../../engine/schedule/schedule.ts';
import { readArguments } from './arguments.ts';
import { readConfigFile } from './config-file.ts';
import { mib } from './sizes.ts';
import { UsageError } from './usage.ts';

/**
 * `plan CONFIG [--adapter NAME] [--json]`: what a run will cost, from its schedule; nothing is run. Returns the exit code.
 */
export async function plan(args: string[]): Promise<number> {
  const { values, positionals } = readArguments({
    args,
    allowPositionals: true,
    options: { adapter: { type: 'string' }, json: { type: 'boolean', default: false } },
  });
  if (positionals.length !== 1) throw new UsageError('plan takes one CONFIG file');
  const config = await readConfigFile(positionals[0]);
  const profile = await profileFor(values.adapter ?? config.adapter);
  const { vocabSize, shapes } = await describeData(config);
  sayLongPlanning(config, vocabSize);
  const prediction = planExperiment(config, profile, vocabSize, shapes);
  const over = budgetVerdict(config, profile, vocabSize, shapes);
  process.stdout.write(`${values.json ? toJson(prediction, over) : toText(config, profile, prediction, over)}\n`);
  return 0;
}

/** Passes through modules that are planned in a second or two. */
const QUICK_PASSES = 5000;

/** What takes up to a minute says so first. */
function sayLongPlanning({ model, trainer }: ExperimentConfig, vocabSize: number): void {
  const passes = buildModel(model, vocabSize).modules.length * trainer.accumulateGradBatches;
  if (passes > QUICK_PASSES)
    process.stderr.write(`planning ${passes.toLocaleString('en')} passes through modules, for up to a minute\n`);
}

/** A built-in profile by its name; else that of an adapter of this machine, of which only the limits are asked. */
async function profileFor(wanted: string): Promise<AdapterProfile> {
  const word = wanted.toLowerCase();
  if (word === 'interpreter' || word === 'h200') return builtInProfiles[word];
  const entries = await discoverAdapters();
  const found = findAdapter(entries, wanted);
  const { name, software, tensorCores } = found;
  const limits = found.limits as Readonly<Record<string, number>> & ProfileLimits;
  const rates = await readCalibration(resolve(process.env.STUDIO_DATA || 'data'), found);
  // As ranks are placed: `auto` spreads them over GPUs of one name.
  const alike = word === 'auto' && !software ? entries.filter((entry) => entry.name === name).length : 1;
  return { ...profileOf({ name, software, limits, tensorCores }, rates), alike };
}

/** The vocabulary and the distinct batch shapes of a config's data. */
async function describeData(config: ExperimentConfig) {
  const { data, model, devices, trainer } = config;
  if (data.kind === 'batches') {
    const file = await readBatchesFile(data.path);
    const { steps, accumulateGradBatches } = trainer;
    const layout = { ranks: devices, accumulateGradBatches };
    const stream = createBatchesStream(file, { ...layout, steps, vocabSize: model.vocabSize });
    const shapes = new Map<string, { batch: number; tokens: number }>();
    for (let step = 0; step < steps; step++) {
      const { rows, columns } = stream.shape(step);
      shapes.set(`${rows} ${columns}`, { batch: rows, tokens: columns });
    }
    return { vocabSize: stream.vocabSize, shapes: [...shapes.values()] };
  }
  // Opened as `train` does, so that what it refuses is refused here.
  const opened = await openRunData(config, join(resolve(process.env.STUDIO_DATA || 'data'), 'corpora'));
  const { vocabSize } = buildModel(model, opened.vocabSize);
  return { vocabSize, shapes: [{ batch: data.batchSize, tokens: data.blockSize }] };
}

/** What does not fit, and what would; null where the config fits or has no budget. */
type Over = ReturnType<typeof budgetVerdict>;

function toJson(prediction: Prediction, over: Over): string {
  // The timeline and the steps are what the studio draws; a program that wants them can have them too.
  return JSON.stringify({ ...prediction, overBudget: over }, null, 2);
}

/** What a person reads: what is reserved, the peak, the time, and the live bytes of each phase by category. */
export function toText(config: ExperimentConfig, profile: AdapterProfile, prediction: Prediction, over: Over): string {
  const { peakBytes, liveBytes, phases, validation, steps, params, world, hostBytes } = prediction;
  const { memoryBudgetMiB: budget, strategy } = config;
  const peak = phases.find((phase) => phase.liveBytes === liveBytes);
  const where = peak ? `in ${peak.phase}, at step ${peak.atStep} (${steps[peak.atStep].label})` : 'in validation';
  const columns = [
    ...phases.map(({ phase, ...rest }) => ({ name: `in ${phase}`, ...rest })),
    ...(validation ? [{ name: 'in validation', atStep: null, ...validation }] : []),
  ];
  const rows = CATEGORIES.map((category) => [category, ...columns.map((column) => cell(column.byCategory[category]))]);
  const fits = over
    ? ['does not fit', overflowMessage(over.overflow, over.fitting)]
    : budget === null
      ? []
      : [`fits memoryBudgetMiB ${budget}`];
  return [
    `${config.name}: ${params.toLocaleString('en')} parameters, ${counted(world, 'rank')}, planned for ${profile.name}`,
    `a rank reserves ${mib(peakBytes)}; most live ${mib(liveBytes)}, ${where}`,
    ...fits,
    `host memory ${mib(hostBytes)} per rank`,
    ...(strategy.kind === 'fsdp' && strategy.linkGBps !== null ? [linkWords(strategy.linkGBps)] : []),
    ...estimateLines(profile, prediction),
    ...(validation ? [validationLine(config, validation)] : []),
    ...configHints(config).map(({ path, message }) => `${path}: ${message}`),
    '',
    'MiB live in a rank, at the one step of the schedule at which each phase holds most in all',
    ...table([
      ['', ...columns.map(({ name }) => name)],
      ['at step', ...columns.map(({ atStep }) => (atStep === null ? '' : String(atStep)))],
      ...rows,
      ['live', ...columns.map((column) => cell(column.liveBytes))],
    ]),
  ].join('\n');
}

/** The time of a step of training, and what it goes into; the link only where one is simulated. */
function estimateLines(
  profile: AdapterProfile,
  { estimateMs, estimateSplitMs, boundBy }: Prediction,
): readonly string[] {
  if (estimateMs === null) return [];
  const parts = RESOURCES.filter((resource) => resource !== 'link' || estimateSplitMs.link > 0);
  const split = parts.map((resource) => `${RESOURCE_WORDS[resource]} ${timeWords(estimateSplitMs[resource])}`);
  return [
    `about ${timeWords(estimateMs)} a training step, bound by ${RESOURCE_WORDS[boundBy]}, by ${ratesWords(profile)}`,
    `  not hidden by anything else: ${split.join(', ')}`,
  ];
}

function validationLine({ trainer }: ExperimentConfig, { estimateMs }: ValidationPass): string {
  const { validateEvery, validateBatches } = trainer;
  const each = `${validateBatches} held-out ${validateBatches === 1 ? 'batch' : 'batches'}`;
  return `validation every ${counted(validateEvery ?? 0, 'step')}: ${each}, about ${timeWords(estimateMs * validateBatches)}`;
}

function table(rows: readonly (readonly string[])[]): string[] {
  const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => row[column].length)));
  return rows.map((row) =>
    row.map((cell, column) => (column === 0 ? cell.padEnd(widths[0]) : cell.padStart(widths[column]))).join('  '),
  );
}

/** MiB, for a column that says so. */
function cell(bytes: number): string {
  return (bytes / 2 ** 20).toFixed(2);
}
