import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StudioError } from '../../engine/errors.ts';
import { type Said, startCli, untilClosed } from '../fixtures/cli-process.ts';
import { openTestStudio } from '../fixtures/test-studio.ts';
import { AdapterList } from '../scheduler/adapter-list.ts';

/** A machine on which no Vulkan driver gives a device: every way in says so, and what to install. */

const noVulkan = pathToFileURL(fileURLToPath(new URL('../fixtures/no-vulkan.mjs', import.meta.url))).href;
const words = [/No GPU adapter works here/, /Install a Vulkan driver .*apt-get install/, /interpreter needs no GPU/];

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'no-adapter-'));
  const batch = { input: [1, 2, 3], target: [2, 3, 4] };
  await writeFile(join(folder, 'batches.json'), JSON.stringify([[batch, batch]]));
});
afterAll(() => rm(folder, { recursive: true }));

function studio(...args: string[]): Promise<Said> {
  const env = {
    ...process.env,
    STUDIO_DATA: join(folder, 'data'),
    NODE_OPTIONS: `--import ${noVulkan}`,
  };
  return untilClosed(startCli(args, { cwd: folder, env }));
}

async function configFile(adapter: string): Promise<string> {
  const model = { kind: 'demo-transformer', vocabSize: 5, ninp: 4, nhead: 1, nhid: 4, nlayers: 1 };
  const config = { model, data: { kind: 'batches', path: 'batches.json' }, trainer: { steps: 1 }, adapter };
  await writeFile(join(folder, `${adapter}.json`), JSON.stringify(config));
  return `${adapter}.json`;
}

describe('the command line', () => {
  it.each(['devices', 'train', 'plan'])('%s says what to install', async (command) => {
    for (const adapter of command === 'devices' ? [''] : ['auto', 'software']) {
      const { code, out, err } = await studio(command, ...(adapter ? [await configFile(adapter)] : []));
      expect(code).toBe(1);
      for (const word of words) expect(err).toMatch(word);
      expect(err).not.toMatch(/^ +at .*\(/m);
      expect(out).toBe('');
    }
  });

  it('train and plan with the interpreter need no adapter', async () => {
    const config = await configFile('interpreter');
    expect((await studio('train', config, '--out', join(folder, 'out'))).code).toBe(0);
    expect(await studio('plan', config)).toMatchObject({ code: 0, out: expect.stringContaining('MiB') });
  });
});

describe('the studio', () => {
  it('starts, says so where adapters are listed and where a run fails, and still runs the interpreter', async () => {
    const message = 'No GPU adapter works here. Install a Vulkan driver.';
    let looked = 0;
    const adapters = new AdapterList(() => {
      looked++;
      return Promise.reject(new StudioError('no-adapter', message));
    });
    const test = await openTestStudio({ adapters });
    try {
      const freeHostBytes = expect.any(Number);
      expect((await test.api.get('/devices')).body).toEqual({ adapters: [], error: message, freeHostBytes });
      const refused = await test.api.until((await test.api.create({ name: 'gpu' })).id, 'failed');
      expect(refused.error).toMatchObject({ code: 'no-adapter', message });
      const { id } = await test.api.create({ name: 'ok', adapter: 'interpreter', trainer: { steps: 1 } });
      await test.api.until(id, 'finished');
      // A driver that is installed meanwhile is found: each time it is looked again.
      expect(looked).toBeGreaterThanOrEqual(2);
    } finally {
      await test.close();
    }
  });
});
