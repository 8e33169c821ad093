import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { allCases } from '../ops/all-cases.ts';
import { type Kernel, type Params, pipelineKey, softwareVariant, tiledVariant } from '../ops/kernel.ts';
import { caseViews, type KernelCase } from '../ops/kernel-case.ts';
import { kernels } from '../ops/registry.ts';
import { openAdapter, openNullAdapter } from './adapters.ts';
import { compile, dispatch, firstDifference, type Opened, openDevice } from './fixtures/run-kernel.ts';

/** What a case runs as: plain, as on a GPU, and as a software adapter alone has it. */
function waysOf(kernel: Kernel, params: Params): { readonly tiled: boolean; readonly variant?: string }[] {
  const variant = softwareVariant(kernel, params)?.name;
  return [
    { tiled: false },
    ...(kernel.tiled?.fits(params) ? [{ tiled: true }] : []),
    ...(variant === undefined ? [] : [{ tiled: true, variant }]),
  ];
}

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

  const variants = new Map<string, readonly [KernelCase, { readonly tiled: boolean; readonly variant?: string }]>();
  for (const testCase of allCases) {
    const { kernel, params } = testCase;
    for (const way of waysOf(kernel, params))
      variants.set(pipelineKey(kernel, params, way.tiled, way.variant), [testCase, way]);
  }
  test.each([...variants])('%s compiles', async (_, [{ kernel, params }, { tiled, variant }]) => {
    await compile(opened.device, kernel, params, tiled, variant).catch((error: Error) => {
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
    return waysOf(kernel, params).map((way) => ({
      label: `${kernel.name}, ${name}${way.tiled ? `, ${way.variant ?? 'tiled'}` : ''}`,
      testCase,
      ...way,
    }));
  });
  test.each(runs)('$label', { timeout: 120_000 }, async ({ testCase, tiled, variant }) => {
    const { kernel, params } = testCase;
    const key = pipelineKey(kernel, params, tiled, variant);
    if (!pipelines.has(key)) pipelines.set(key, compile(opened.device, kernel, params, tiled, variant));
    const want = caseViews(testCase, 1);
    const views = caseViews(testCase, 1);
    const got = await dispatch(opened.device, await pipelines.get(key)!, testCase, views, tiled, variant);
    kernel.run(want, params);
    expect(opened.errors.splice(0)).toEqual([]);
    expect(firstDifference(testCase, got, want)).toBeNull();
  });
});
