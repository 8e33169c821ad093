import { expect, it } from 'vitest';
import { checkConfig } from '../../engine/config.ts';
import { builtInProfiles } from '../../engine/schedule/profile.ts';
import { lackOf, type Place, verdictHere } from './fit-here.ts';

const GiB = 2 ** 30;
const software = (freeHostBytes: number): Place => ({
  profile: builtInProfiles.software,
  memoryBytes: null,
  freeHostBytes,
});
const gpu = (memoryBytes: number, alike: number): Place => ({
  profile: { ...builtInProfiles.h200, alike },
  memoryBytes,
  freeHostBytes: 100 * GiB,
});
const configOf = (given: object) => {
  const model = { kind: 'demo-transformer', vocabSize: 1000, ninp: 512, nhead: 8, nhid: 2048, nlayers: 4 };
  const { config, problems } = checkConfig({ model, ...given });
  if (!config) throw new Error(JSON.stringify(problems));
  return config;
};

it('counts buffers of all ranks as host memory on a software adapter, and by adapter on GPUs', () => {
  const plan = { peakBytes: 3 * GiB, hostBytes: GiB, world: 2 };
  expect(lackOf(plan, software(8 * GiB))).toBeNull();
  expect(lackOf(plan, software(8 * GiB - 1))).toEqual({ of: 'host', neededBytes: 8 * GiB, hasBytes: 8 * GiB - 1 });
  expect(lackOf(plan, gpu(4 * GiB, 2))).toBeNull();
  expect(lackOf(plan, gpu(4 * GiB, 1))).toEqual({ of: 'adapter', neededBytes: 6 * GiB, hasBytes: 4 * GiB });
  expect(lackOf({ ...plan, hostBytes: 51 * GiB }, gpu(80 * GiB, 2))?.of).toBe('host');
});

it('offers what would fit: the strategy first, then a smaller model', () => {
  const config = configOf({ strategy: 'ddp' });
  const roomy = verdictHere(config, software(64 * GiB));
  expect(roomy).toMatchObject({ lacks: null, refused: null, ways: [] });
  const tight = verdictHere(config, software(1.2 * GiB));
  expect(tight.lacks?.of).toBe('host');
  expect(tight.ways[0]).toMatchObject({ label: 'SHARD_GRAD_OP', changes: { strategy: { kind: 'fsdp' } } });
  for (const { neededBytes } of tight.ways) expect(neededBytes).toBeLessThanOrEqual(1.2 * GiB);
  const tiny = verdictHere(config, software(0.1 * GiB));
  expect(tiny.ways.map(({ label }) => label)).toEqual(['the size default']);
  expect(tiny.ways[0].changes).toMatchObject({ 'model.ninp': 200 });
  expect(verdictHere(config, software(1000)).ways).toEqual([]);
});

it('says why an adapter cannot run it at all', () => {
  const small = { ...builtInProfiles.software, maxBindingBytes: 2 ** 20 };
  const { refused, lacks } = verdictHere(configOf({}), { ...software(64 * GiB), profile: small });
  expect(refused).toMatch(/\S/);
  expect(lacks).toBeNull();
});
