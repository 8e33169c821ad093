// What `npm run -s interop -- LOADER.py` runs: trains the run of interop.config.yaml, and has real PyTorch load its
// checkpoint and compare it, bit for bit, with the weights that the ranks themselves wrote to a safetensors file.
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { root } from './paths.mjs';
import { runProgram, runScript, SetupError } from './process.mjs';
import { checkPlatform, ensureGenerated, ensureInstalled } from './setup.mjs';

const minuteMs = 60_000;
const adapters = ['interpreter', 'software'];

await runScript(async () => {
  const [loader, ...rest] = process.argv.slice(2);
  if (!loader || rest.length)
    throw new SetupError('usage: npm run -s interop -- LOADER.py   (a script that checks "full FILE EXPECTED")');
  if (!existsSync(loader)) throw new SetupError(`${loader} is not there.`);
  checkPlatform();
  await ensureInstalled();
  await ensureGenerated();
  const python = await pythonWithTorch();
  const { parse } = await import('yaml');
  const config = parse(readFileSync(path.join(root, 'scripts', 'interop.config.yaml'), 'utf8'));

  const work = mkdtempSync(path.join(tmpdir(), 'shard-studio-interop-'));
  process.on('exit', () => rmSync(work, { recursive: true, force: true }));
  for (const adapter of adapters) {
    console.log(`\n── PyTorch loads what the ${adapter} trained`);
    const out = path.join(work, adapter);
    const configFile = path.join(work, `${adapter}.json`);
    const expected = path.join(work, `${adapter}.safetensors`);
    writeFileSync(configFile, JSON.stringify({ ...config, name: `interop-${adapter}`, adapter }));
    await mustRun(
      process.execPath,
      ['--import', 'tsx', 'server/cli.ts', 'train', configFile, '--out', out, '--weights', expected],
      10 * minuteMs,
    );
    const checkpoint = path.join(out, 'checkpoints', `step-${String(config.trainer.steps).padStart(6, '0')}.ckpt`);
    await mustRun(python, [loader, 'full', checkpoint, expected], 5 * minuteMs);
  }
  console.log(`${adapters.length} checkpoints equal in PyTorch.`);
});

/** Debian's python3-torch belongs to Debian's Python, which need not be the first on the PATH. */
async function pythonWithTorch() {
  for (const python of ['/usr/bin/python3', 'python3']) {
    const { code } = await runProgram(python, ['-c', 'import torch'], { timeoutMs: 2 * minuteMs, quiet: true }).catch(
      () => ({
        code: -1,
      }),
    );
    if (code === 0) return python;
  }
  throw new SetupError(
    'No Python here has PyTorch: "apt-get install python3-torch" on Debian, or "pip install torch".',
  );
}

async function mustRun(command, args, timeoutMs) {
  const { code } = await runProgram(command, args, { timeoutMs });
  if (code !== 0) throw new SetupError(`${path.basename(command)} ${args.join(' ')} ended with exit code ${code}.`);
}
