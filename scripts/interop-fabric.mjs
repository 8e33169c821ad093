// Checkpoints between Lightning Fabric and us, both ways, on a machine with a GPU whose python3 has torch and lightning:
//   node scripts/interop-fabric.mjs LOADER.py [--adapter NAME] [--ranks N]
// Ours (two ranks, full and sharded) are loaded by the LOADER and by Fabric on N ranks; Fabric's of N ranks are read here,
// written again and compared by torch itself, bit for bit, and trained on from. Everything at once, to be short.
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { root } from './paths.mjs';
import { runProgram, runScript, SetupError } from './process.mjs';

const BOUND_MS = 70_000;
const fabric = path.join(root, 'scripts', 'interop-fabric.py');
const batches = path.join(root, 'engine', 'testdata', 'demo-transformer', 'batches.json');
const shape = { ninp: 32, nhead: 4, nhid: 64, nlayers: 2 };
/** Largest relative difference of a loss after training went on from the other's checkpoint. */
const TOLERANCE = 1e-4;

await runScript(async () => {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { adapter: { type: 'string', default: 'auto' }, ranks: { type: 'string', default: '2' } },
  });
  const [loader] = positionals;
  const ranks = Number(values.ranks);
  if (positionals.length !== 1 || !(ranks >= 1))
    throw new SetupError('usage: node scripts/interop-fabric.mjs LOADER.py [--adapter NAME] [--ranks N]');
  const work = mkdtempSync(path.join(tmpdir(), 'interop-fabric-'));
  process.on('exit', () => rmSync(work, { recursive: true, force: true }));
  const failures = [];
  const check = (what, promise) =>
    promise.catch((error) => {
      failures.push(what);
      console.log(`FAILED ${what}: ${error.message.split('\n').slice(-6).join('\n       ')}`);
    });
  const run = { work, adapter: values.adapter, loader };
  await Promise.all([
    check('ours in PyTorch and Fabric', oursThere(run, ranks, check)),
    ...[...new Set([1, ranks])].map((world) => check(`Fabric's of ${world} here`, fabricsHere(run, world))),
  ]);
  if (failures.length) throw new SetupError(`${failures.length} failed: ${failures.join(', ')}`);
  console.log('Checkpoints are the same on both sides.');
});

/** Trains two ranks and saves both forms; the loader reads them, and Fabric on one rank and on several. */
async function oursThere({ work, adapter, loader }, ranks, check) {
  const expected = path.join(work, 'expected.safetensors');
  const saved = (format) => path.join(work, format, 'checkpoints', `step-000005${format === 'full' ? '.ckpt' : ''}`);
  const config = path.join(work, 'shape.json');
  writeFileSync(config, JSON.stringify({ vocab: 97, ...shape, B: 3, T: 12 }));
  await Promise.all(
    ['full', 'sharded'].map((format) =>
      train(work, adapter, format, {
        devices: 2,
        trainer: { steps: 5 },
        checkpoint: { format },
        weights: format === 'full' ? expected : `${expected}.2`,
      }),
    ),
  );
  const python = (what, script, ...args) => check(what, must('python3', [script, ...args]));
  const all = String(ranks);
  await Promise.all([
    python('full in torch', loader, 'full', saved('full'), expected),
    python('sharded in torch', loader, 'sharded', saved('sharded'), expected),
    python('full and sharded in torch', fabric, 'same', saved('full'), saved('sharded')),
    python('full in Fabric', loader, 'fabric', saved('full'), config, expected),
    python('sharded in Fabric', loader, 'fabric', saved('sharded'), config, expected),
    python(`full in Fabric on ${ranks}`, fabric, 'load', saved('full'), saved('full'), all),
    python(`sharded in Fabric on ${ranks}`, fabric, 'load', saved('sharded'), saved('full'), all),
  ]);
}

/** Fabric trains and saves; what we read of it is written again in other forms, and trained on from. */
async function fabricsHere({ work, adapter }, world) {
  const folder = path.join(work, `fabric-${world}`);
  mkdirSync(folder);
  await must('python3', [fabric, 'make', folder, batches, String(world)]);
  const [full, sharded] = ['full', 'sharded'].map((form) => path.join(folder, form));
  const convert = (from, to, ...options) => must(...studio('checkpoint', 'convert', from, to, ...options));
  const resume = async (from) => {
    const name = `resumed-${world}-${path.basename(from)}`;
    const checkpoint = { resume: from, atEnd: false };
    const losses = await train(work, adapter, name, { devices: world, trainer: { steps: 10 }, checkpoint });
    const wanted = JSON.parse(readFileSync(path.join(folder, 'losses.json'), 'utf8'));
    const far = [...losses].filter(([step, loss]) => Math.abs(loss / wanted[step] - 1) > TOLERANCE);
    if (losses.size !== 5 || far.length)
      throw new SetupError(
        `losses after Fabric's ${path.basename(from)}: ${JSON.stringify([...losses])} for ${wanted}`,
      );
    console.log(`OK steps 5 to 9 after Fabric's ${path.basename(from)} of ${world}, within ${TOLERANCE}`);
  };
  await Promise.all([
    convert(full, `${full}-as-full`, '--format', 'full'),
    convert(full, `${full}-in-3`, '--format', 'sharded', '--ranks', '3'),
    convert(sharded, `${sharded}-as-full`, '--format', 'full'),
    convert(sharded, `${sharded}-in-2`, '--format', 'sharded', '--ranks', '2'),
  ]);
  const pairs = [full, `${full}-as-full`, full, `${full}-in-3`, sharded, `${sharded}-as-full`];
  await Promise.all([
    must('python3', [fabric, 'same', ...pairs, sharded, `${sharded}-in-2`, full, sharded]),
    resume(full),
    resume(sharded),
  ]);
}

/** `studio train` of the reference's model; the mean losses by step. */
async function train(work, adapter, name, { devices, weights, ...rest }) {
  const [config, report] = [`${name}.json`, `${name}.jsonl`].map((file) => path.join(work, file));
  writeFileSync(
    config,
    JSON.stringify({
      name,
      model: { kind: 'demo-transformer', vocabSize: 97, ...shape },
      data: { kind: 'batches', path: batches },
      optimizer: { kind: 'adam', lr: 0.001 },
      devices,
      adapter,
      strategy: { kind: 'fsdp' },
      ...rest,
    }),
  );
  const out = ['--out', path.join(work, name), '--report', report, ...(weights ? ['--weights', weights] : [])];
  await must(...studio('train', config, ...out));
  const events = readFileSync(report, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  return new Map(events.flatMap((e) => (e.event === 'step' && e.rank === 0 ? [[e.step, e.lossMean]] : [])));
}

function studio(...args) {
  return [process.execPath, ['--import', 'tsx', 'server/cli.ts', ...args]];
}

/** Runs a program and repeats its lines of OK; SetupError with its last lines if it fails. */
async function must(command, args) {
  const { code, tail } = await runProgram(command, args, { timeoutMs: BOUND_MS, quiet: true });
  const said = tail.split('\n').filter((line) => /^(OK|DIFF)/.test(line));
  for (const line of said) console.log(`${(performance.now() / 1000).toFixed(0).padStart(3)} s ${line}`);
  if (code !== 0)
    throw new SetupError(`${path.basename(command)} ${args.slice(0, 3).join(' ')} ended with ${code}\n${tail}`);
}
