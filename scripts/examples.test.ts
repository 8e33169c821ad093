import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type ExperimentConfig, GPT2_VOCAB_SIZE } from '../engine/config.ts';
import { trainRun } from '../engine/node/fixtures/train-run.ts';
import { planExperiment, shapeOfData } from '../engine/schedule/plan.ts';
import { builtInProfiles } from '../engine/schedule/profile.ts';
import { readConfigFile } from '../server/commands/config-file.ts';
import { type Said, startCli, untilClosed } from '../server/fixtures/cli-process.ts';

const root = path.resolve(import.meta.dirname, '..');
const examples = path.join(root, 'docs', 'examples');
const files = readdirSync(examples).filter((name) => name.endsWith('.yaml'));
/** Words of Moby Dick. */
const WORDS = 32_918;
const SMALL_PARAMETERS = 10e6;

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(path.join(tmpdir(), 'examples-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

function planned(config: ExperimentConfig) {
  const { model, data } = config;
  const words = data.kind !== 'batches' && data.tokenizer === 'gpt2' ? GPT2_VOCAB_SIZE : WORDS;
  return planExperiment(config, builtInProfiles.h200, model.vocabSize ?? words, [shapeOfData(data)]);
}

describe.each(files)('docs/examples/%s', (file) => {
  it('is a config that can be planned, and needs what it says', async () => {
    const reservedMiB = planned(await readConfigFile(path.join(examples, file))).peakBytes / 2 ** 20;
    const said = /about ([\d,]+) MiB a rank/.exec(readFileSync(path.join(examples, file), 'utf8'))?.[1];
    if (said === undefined) expect(reservedMiB).toBeGreaterThan(0);
    else expect(Math.abs(reservedMiB / Number(said.replaceAll(',', '')) - 1)).toBeLessThan(0.1);
  });

  it('trains two steps on the interpreter, on a text of few words, if it is small', async () => {
    const config = await readConfigFile(path.join(examples, file));
    if (planned(config).params > SMALL_PARAMETERS) {
      expect(file).not.toBe('first-run.yaml');
      return;
    }
    const text = path.join(folder, 'text.txt');
    writeFileSync(text, 'one two three four five six seven eight nine ten\n'.repeat(100));
    const { losses, status, checkpoints } = await trainRun(path.join(folder, 'run'), {
      ...config,
      data: { ...config.data, kind: 'wikitext2', path: text },
      trainer: { ...config.trainer, steps: 2 },
      adapter: 'interpreter',
    });
    expect([status, losses.size, losses.get(1)?.length]).toEqual(['finished', 2, config.devices]);
    expect(losses.get(1)?.every((loss) => Number.isFinite(loss) && loss > 0)).toBe(true);
    expect(checkpoints).toHaveLength(1);
  });
});

/** Runs a line of the README in the test's folder, as a shell in the repository would. */
function studio(line: string): Promise<Said> {
  const args = [...line.matchAll(/"([^"]*)"|(\S+)/g)].map(([, quoted, word]) => quoted ?? word);
  const { STUDIO_DATA: _, ...env } = process.env;
  return untilClosed(startCli(args, { cwd: folder, env }));
}

it("the README's commands go from its config to a file for PyTorch", async () => {
  const [, block] = /```sh\n([\s\S]*?)```/.exec(readFileSync(path.join(root, 'README.md'), 'utf8'))!;
  const run = 'npm run -s studio -- ';
  // Two steps instead of twenty: whatever else they say is as it is written.
  const lines = block.replaceAll('step-000020', 'step-000002').trim().split('\n');
  mkdirSync(path.join(folder, 'docs'));
  cpSync(examples, path.join(folder, 'docs', 'examples'), { recursive: true });
  const config = path.join(folder, 'docs', 'examples', 'first-run.yaml');
  const written = readFileSync(config, 'utf8');
  writeFileSync(config, written.replace('steps: 20,', 'steps: 2,'));
  expect(readFileSync(config, 'utf8')).not.toBe(written);
  const commands = lines.filter((line) => line.startsWith(run)).map((line) => line.slice(run.length));
  expect(commands.map((line) => line.split(' ')[0])).toEqual(['plan', 'train', 'checkpoint', 'sample', 'checkpoint']);
  const said: string[] = [];
  for (const command of commands) {
    const { code, out, err } = await studio(command);
    expect(code, `${command}: ${err}`).toBe(0);
    said.push(out);
  }
  expect(said[0]).toMatch(/a rank reserves [\d.,]+ MiB/);
  expect(said[3]).toMatch(/^Call me \S/);
  // What is left for Python is to open what was converted.
  const last = lines.at(-1)!;
  expect(last).toMatch(/^python3 -c "import torch; /);
  expect(commands.at(-1)).toContain(/torch\.load\('([^']+)'\)/.exec(last)![1]);
  const [, tensor] = /\['model'\]\['([^']+)'\]/.exec(last)!;
  expect((await studio('checkpoint inspect data/first-run/model.ckpt --all')).out).toContain(`  ${tensor} `);
});
