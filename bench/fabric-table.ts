import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { measureRates, type OwnFigures, type OwnRun, runOurs } from './fabric-table-ours.ts';
import { type Figures, ROWS, type Row, rowsOf } from './fabric-table-rows.ts';
import { TorchRanks } from './fabric-table-torch.ts';
import { GUIDE_MODEL } from './guide-model.ts';
import { timesOf } from './measure.ts';

const driver = path.join(import.meta.dirname, 'fabric-table-torch.py');
const baseline = path.resolve(import.meta.dirname, '../../shared/bench/fabric_baseline.py');
const [TORCH_START_MS, TORCH_ROW_MS] = [180_000, 180_000];

/** What became of a row: the figures of each side, or why it has none. */
export interface Outcome<F extends Figures> {
  readonly figures: readonly F[];
  readonly failed: string | null;
  /** From its start to its end. */
  readonly seconds: number;
}

const COLUMNS = [
  'row',
  'who',
  'median ms',
  'min',
  'max',
  'predicted',
  'to median',
  'live MiB',
  'reserved',
  'planned',
  'nvidia-smi',
];
const WIDTHS = [16, 6, 10, 8, 8, 10, 10, 9, 9, 8, 14];

/**
 * The table of Fabric's FSDP guide: our rows and, where python3 has torch and lightning and there are GPUs enough, Fabric's,
 * in turns, each printed as soon as it is done and, where OUT names a folder, kept in its fabric-table.json. A side that fails
 * says so in its row. Arguments: --rows a,b (in that order; all if left out), --rounds N (1), --steps N (8, of which three are
 * not counted), --adapter NAME, --no-calibrate (predicts by the rates that the studio has built in); another model than the
 * guide's: --layers N (32), --width N (1024), --vocab N (33278).
 */
export async function run(args: readonly string[]): Promise<void> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rows: { type: 'string', default: ROWS.map(({ name }) => name).join(',') },
      rounds: { type: 'string', default: '1' },
      steps: { type: 'string', default: '8' },
      adapter: { type: 'string', default: 'auto' },
      'no-calibrate': { type: 'boolean', default: false },
      layers: { type: 'string', default: String(GUIDE_MODEL.nlayers) },
      width: { type: 'string', default: String(GUIDE_MODEL.ninp) },
      vocab: { type: 'string', default: String(GUIDE_MODEL.vocabSize) },
    },
  });
  const rows = rowsOf(values.rows.split(','));
  const [steps, layers, width, vocab] = [values.steps, values.layers, values.width, values.vocab].map(Number);
  // The guide's proportions: heads of 16, hidden layers of four widths.
  const model = { ...GUIDE_MODEL, nlayers: layers, ninp: width, nhead: width / 16, nhid: 4 * width, vocabSize: vocab };
  const folder = mkdtempSync(path.join(tmpdir(), 'shard-studio-table-'));
  const ours: OwnRun = { folder, steps, adapter: values.adapter, model };
  const world = Math.max(...rows.map(({ devices }) => devices));
  const began = performance.now();
  const torch = existsSync(baseline)
    ? await TorchRanks.open(
        { program: 'python3', args: [driver, baseline], startMs: TORCH_START_MS, rowMs: TORCH_ROW_MS },
        world,
      )
    : null;
  try {
    if (!values['no-calibrate']) await measureRates(ours, world);
    console.log(
      `ready after ${secondsSince(began).toFixed(0)} s; ${torch ? `${torch.gpus} GPUs for torch` : 'no torch'}`,
    );
    console.log(line(COLUMNS));
    const done: unknown[] = [];
    for (const row of rows) {
      const sides = { torch: none<Figures>(), ours: none<OwnFigures>() };
      for (let round = 0; round < Number(values.rounds); round++) {
        if (torch && torch.gpus >= row.devices)
          sides.torch = await added(sides.torch, () => torch.row(torchArguments(row, { steps, model }), row.devices));
        sides.ours = await added(sides.ours, () => runOurs(row, ours));
      }
      for (const text of rowLines(row, sides.ours, sides.torch)) console.log(text);
      done.push({ row, ...sides });
      keep({ at: new Date().toISOString(), steps, adapter: values.adapter, model, rows: done });
    }
  } finally {
    torch?.close();
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Written anew after each row: a command that is killed loses only the row that it was at. */
function keep(table: object): void {
  const out = process.env.OUT;
  if (out) writeFileSync(path.join(out, 'fabric-table.json'), `${JSON.stringify(table, null, 1)}\n`);
}

function none<F extends Figures>(): Outcome<F> {
  return { figures: [], failed: null, seconds: 0 };
}

async function added<F extends Figures>(before: Outcome<F>, work: () => Promise<F>): Promise<Outcome<F>> {
  const began = performance.now();
  try {
    const figures = [...before.figures, await work()];
    return { ...before, figures, seconds: before.seconds + secondsSince(began) };
  } catch (error) {
    return { ...before, failed: (error as Error).message, seconds: before.seconds + secondsSince(began) };
  }
}

function secondsSince(began: number): number {
  return (performance.now() - began) / 1000;
}

function torchArguments(
  { torch, devices, batch, tokens, precision }: Row,
  { steps, model }: Pick<OwnRun, 'steps' | 'model'>,
): string[] {
  const { nlayers, ninp, nhid, nhead, vocabSize } = model;
  const options = { steps, devices, batch, tokens, precision, layers: nlayers, ninp, nhid, nhead, vocab: vocabSize };
  return [torch, ...Object.entries(options).flatMap(([name, value]) => [`--${name}`, String(value)])];
}

/** The lines of a row: torch's figures, ours, ours to torch's, where our ranks were and what it took; or why there are none. */
export function rowLines({ name }: Row, ours: Outcome<OwnFigures>, torch: Outcome<Figures>): string[] {
  const lines: string[] = [];
  const own = ours.figures.at(-1);
  const theirs = torch.figures.at(-1);
  const theirTimes = theirs && timesOf(torch.figures.flatMap(({ ms }) => ms));
  const ownTimes = own && timesOf(ours.figures.flatMap(({ ms }) => ms));
  if (theirs && theirTimes)
    lines.push(line([name, 'torch', ...three(theirTimes), '', '', whole(theirs.liveMiB), whole(theirs.reservedMiB)]));
  if (own && ownTimes) {
    const { predictedMs, liveMiB, reservedMiB, plannedMiB, driverMiB } = own;
    const predicted = predictedMs === null ? ['', ''] : [whole(predictedMs), ratio(predictedMs, ownTimes.medianMs)];
    const driver =
      driverMiB === null ? '' : `${whole(driverMiB)} ${agrees(plannedMiB, driverMiB) ? 'agrees' : 'DIFFERS'}`;
    const memory = [liveMiB, reservedMiB, plannedMiB].map(whole);
    lines.push(line([name, 'ours', ...three(ownTimes), ...predicted, ...memory, driver]));
    if (theirs && theirTimes) {
      const time = ratio(ownTimes.medianMs, theirTimes.medianMs);
      lines.push(line([name, 'ratio', time, '', '', '', '', '', ratio(own.reservedMiB, theirs.liveMiB)]));
    }
  }
  for (const [who, { failed }] of Object.entries({ torch, ours }))
    if (failed !== null) lines.push(`${line([name, who])} failed: ${failed.trim()}`);
  const places = own?.places ? [`ranks on ${own.places}`] : [];
  const took = Object.entries({ torch, ours }).flatMap(([who, { seconds }]) =>
    seconds > 0 ? [`${who} took ${seconds.toFixed(0)} s`] : [],
  );
  lines.push(`${' '.repeat(WIDTHS[0] + 1)}${[...places, ...took].join(', ')}`);
  return lines;
}

function three({ medianMs, minMs, maxMs }: ReturnType<typeof timesOf>): string[] {
  return [medianMs, minMs, maxMs].map((ms) => ms.toFixed(1));
}

/** Whether the driver reports what was planned for a GPU, but for 10 % and what its context takes. */
export function agrees(plannedMiB: number, driverMiB: number): boolean {
  return Math.abs(driverMiB - plannedMiB) <= plannedMiB * 0.1 + 600;
}

function ratio(a: number, b: number): string {
  return (a / b).toFixed(3);
}

function whole(value: number): string {
  return value.toFixed(0);
}

function line(cells: readonly string[]): string {
  const padded = cells.map((cell, i) => (i < 2 ? cell.padEnd(WIDTHS[i]) : cell.padStart(WIDTHS[i])));
  return padded.join(' ').trimEnd();
}
