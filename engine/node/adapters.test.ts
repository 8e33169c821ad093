import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { afterEach, describe, expect, test, vi } from 'vitest';
import {
  type AdapterEntry,
  type DriverReport,
  discoverAdapters,
  findAdapter,
  openAdapter,
  openNullAdapter,
  sortAdapters,
} from './adapters.ts';
import { deviceJson, deviceTable } from './device-list.ts';

const entry = (id: string, name: string, software = false): AdapterEntry => ({
  id,
  name,
  vendor: 'NVIDIA',
  driver: 'NVIDIA 580.159.03',
  software,
  pciId: software ? null : id,
  features: ['core-features-and-limits', 'shader-f16', 'subgroups'],
  limits: {
    maxBufferSize: 2 ** 40,
    maxStorageBufferBindingSize: 2 ** 31 - 4,
    maxStorageBuffersPerShaderStage: 16,
    maxComputeInvocationsPerWorkgroup: 1024,
    maxComputeWorkgroupStorageSize: 49152,
  },
  subgroupMinSize: 32,
  subgroupMaxSize: 32,
  subgroupMatrixConfigs: [{ componentType: 'f16', resultComponentType: 'f32', M: 16, N: 16, K: 16 }],
  tensorCores: true,
  deviceMemoryBytes: 150 * 1e9,
  uploadStaging: 'device',
  icdPath: '/icd.json',
});
const machine = [
  entry('swiftshader', 'SwiftShader Device (Subzero)', true),
  entry('0000:b3:00.0', 'NVIDIA H200'),
  entry('lavapipe', 'llvmpipe (LLVM 19.1.7, 256 bits)', true),
  entry('0000:1b:00.0', 'NVIDIA H200'),
  entry('0000:1b:00.0', 'NVIDIA H200'),
];

describe('the order of adapters', () => {
  test('is real GPUs, lavapipe, SwiftShader, each once', () => {
    const ids = sortAdapters(machine).map(({ id }) => id);
    expect(ids).toEqual(['0000:1b:00.0', '0000:b3:00.0', 'lavapipe', 'swiftshader']);
  });

  test.each([
    ['auto', '0000:1b:00.0'],
    ['software', 'lavapipe'],
    ['swiftshader', 'swiftshader'],
    ['0000:B3:00.0', '0000:b3:00.0'],
    ['b3:00.0', '0000:b3:00.0'],
    ['nvidia h200', '0000:1b:00.0'],
    ['H200', '0000:1b:00.0'],
  ])('%s is %s', (wanted, id) => {
    expect(findAdapter(sortAdapters(machine), wanted).id).toBe(id);
  });

  test.each([
    ['softwre', 'software'],
    ['nvida-h200', 'NVIDIA H200'],
    ['interpretor', 'interpreter'],
  ])('names the nearest to %s', (wanted, nearest) => {
    const message = expect.stringMatching(new RegExp(`There is: .*\\)\\. Did you mean ${nearest}\\?$`));
    expect(() => findAdapter(sortAdapters(machine), wanted)).toThrow(expect.objectContaining({ message }));
  });

  test.each(['RTX 5080', ''])('says what there is when asked for %j', (wanted) => {
    expect(() => findAdapter(sortAdapters(machine), wanted)).toThrow(
      expect.objectContaining({ code: 'no-adapter', message: expect.stringContaining('NVIDIA H200 (0000:b3:00.0)') }),
    );
  });
});

describe('the list of devices', () => {
  test('shows each adapter with what training can use', () => {
    expect(deviceTable([machine[1]])).toMatchInlineSnapshot(`
      "ID            NAME         KIND  MEMORY     DRIVER
      0000:b3:00.0  NVIDIA H200  GPU   139.7 GiB  NVIDIA 580.159.03
                    features: shader-f16, subgroups
                    limits: buffer 1 TiB, binding 2 GiB, 16 storage buffers, workgroup 1024 threads and 48 KiB, subgroup 32
                    matrix tiles: f16->f32 16x16x16
                    uploads go through GPU memory"
    `);
  });

  test('as JSON has everything', () => {
    expect(JSON.parse(deviceJson(machine))).toEqual(machine);
  });
});

describe('adapters of this machine', () => {
  afterEach(() => vi.unstubAllEnvs());

  test('include the bundled software GPU, which a config can ask for', async () => {
    const found = (await discoverAdapters()).find(({ id }) => id === 'swiftshader');
    expect(found).toMatchObject({ software: true, pciId: null, vendor: 'Google' });
    expect(found?.limits.maxStorageBufferBindingSize).toBe(2 ** 30);
    expect(found?.features).toContain('subgroups');
    const opened = await openAdapter('swiftshader');
    expect(opened.entry).toEqual(found);
  }, 60_000);

  test('do not suffer from a driver that cannot be loaded', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'icd-'));
    try {
      const broken = join(folder, 'broken_icd.json');
      await writeFile(broken, JSON.stringify({ ICD: { library_path: './absent.so', api_version: '1.3.0' } }));
      await writeFile(join(folder, 'torn_icd.json'), '{"ICD":');
      vi.stubEnv('VK_DRIVER_FILES', folder);
      const problems: DriverReport[] = [];
      const found = await discoverAdapters((report) => problems.push(report));
      expect(found.map(({ id }) => id)).toEqual(['swiftshader']);
      expect(problems).toMatchObject([{ icdPath: broken, adapters: [] }]);
    } finally {
      await rm(folder, { recursive: true });
    }
  }, 60_000);

  test('are refused by name when they are not there', async () => {
    await expect(openAdapter('GeForce 256')).rejects.toMatchObject({ code: 'no-adapter' });
  });

  test('run a shader in two processes at once, with what create() gave kept through collections', async () => {
    const rounds = 12;
    const sums = Array.from({ length: rounds }, (_, round) => (round + 1) * ((63 * 64) / 2));
    const results = await Promise.all([useAdapter(rounds), useAdapter(rounds)]);
    expect(results).toEqual([
      { id: 'swiftshader', sums },
      { id: 'swiftshader', sums },
    ]);
  }, 60_000);

  test('compile without a GPU on the null adapter', async () => {
    const adapter = await openNullAdapter();
    const device = await adapter.requestDevice({ requiredFeatures: ['shader-f16'] });
    const module = device.createShaderModule({ code: 'enable f16; @compute @workgroup_size(1) fn main() { _ = 1h; }' });
    await expect(device.createComputePipelineAsync({ layout: 'auto', compute: { module } })).resolves.toBeDefined();
    device.destroy();
  });
});

async function useAdapter(rounds: number): Promise<unknown> {
  const fixture = fileURLToPath(new URL('./fixtures/adapter-use.ts', import.meta.url));
  const loader = createRequire(import.meta.url).resolve('tsx');
  const child: ChildProcess = fork(fixture, [String(rounds)], {
    execArgv: ['--expose-gc', '--import', pathToFileURL(loader).href],
  });
  const [message] = await Promise.race([
    once(child, 'message'),
    once(child, 'exit').then(([code, signal]) => [`ended with ${signal ?? code}`]),
  ]);
  return message;
}
