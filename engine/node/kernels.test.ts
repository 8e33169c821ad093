import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { allCases } from '../ops/all-cases.ts';
import { type Kernel, pipelineKey, tiledVariant } from '../ops/kernel.ts';
import { caseViews, type KernelCase } from '../ops/kernel-case.ts';
import { kernels } from '../ops/registry.ts';
import { openAdapter, openNullAdapter } from './adapters.ts';
import { compile, dispatch, firstDifference, type Opened, openDevice } from './fixtures/run-kernel.ts';

test('every kernel has a case, and every tiled variant one that it fits', () => {
  const has = (kernel: Kernel, tiled: boolean) =>
    allCases.some((c) => c.kernel === kernel && (!tiled || kernel.tiled?.fits(c.params)));
  const missing = [...kernels.values()].filter((k) => !has(k, k.tiled !== undefined)).map(({ name }) => name);
  // Kernels that differ only in what they store share a special variant's cases.
  const special = new Set(allCases.map((c) => tiledVariant(c.kernel, c.params)?.name));
  for (const { name, tiled } of kernels.values())
    for (const variant of tiled?.special ?? []) if (!special.has(variant.name)) missing.push(`${name} ${variant.name}`);
  expect(missing).toEqual([]);
});

describe("on Dawn's null backend", () => {
  let opened: Opened;
  beforeAll(async () => {
    opened = await openDevice(await openNullAdapter());
  });
  afterAll(() => opened.device.destroy());

  const variants = new Map<string, readonly [KernelCase, boolean]>();
  for (const testCase of allCases) {
    const { kernel, params } = testCase;
    for (const tiled of kernel.tiled?.fits(params) ? [false, true] : [false]) {
      variants.set(pipelineKey(kernel, params, tiled), [testCase, tiled]);
    }
  }
  test.each([...variants])('%s compiles', async (_, [{ kernel, params }, tiled]) => {
    await compile(opened.device, kernel, params, tiled).catch((error: Error) => {
      // This backend has 16 KiB for a workgroup. A shader that asks for more, and is right otherwise, runs on the adapter.
      if (!error.message.includes('total use of workgroup storage')) throw error;
    });
    expect(opened.errors.splice(0)).toEqual([]);
  });
});

describe('on an adapter', () => {
  let opened: Opened;
  const pipelines = new Map<string, Promise<GPUComputePipeline>>();
  beforeAll(async () => {
    opened = await openDevice((await openAdapter('auto', { validate: true })).adapter);
  }, 60_000);
  afterAll(() => opened.device.destroy());

  const runs = allCases.flatMap((testCase) => {
    const { kernel, name, params } = testCase;
    const label = `${kernel.name}, ${name}`;
    return [
      { label, testCase, tiled: false },
      ...(kernel.tiled?.fits(params) ? [{ label: `${label}, tiled`, testCase, tiled: true }] : []),
    ];
  });
  test.each(runs)('$label', { timeout: 120_000 }, async ({ testCase, tiled }) => {
    const { kernel, params } = testCase;
    const key = pipelineKey(kernel, params, tiled);
    if (!pipelines.has(key)) pipelines.set(key, compile(opened.device, kernel, params, tiled));
    const want = caseViews(testCase, 1);
    const got = await dispatch(opened.device, await pipelines.get(key)!, testCase, caseViews(testCase, 1), tiled);
    kernel.run(want, params);
    expect(opened.errors.splice(0)).toEqual([]);
    expect(firstDifference(testCase, got, want)).toBeNull();
  });
});
