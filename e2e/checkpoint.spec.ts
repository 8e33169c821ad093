import { readFile } from 'node:fs/promises';
import type { Page } from '@playwright/test';
import { bytesSource } from '../engine/checkpoint/byte-source.ts';
import { openWeights, type Weights } from '../engine/checkpoint/fixtures/read-weights.ts';
import { CheckpointDetails, type Run, TensorDetails } from '../server/contract.ts';
import { expect, longConfig, SMALL_TEXT, StudioApi, smallConfig, test } from './studio.ts';

let run: Run;
let path: string;
test.beforeAll(async ({ playwright, baseURL }) => {
  const request = await playwright.request.newContext({ baseURL });
  const api = new StudioApi(request);
  path = await api.upload('text', 'whale.txt', SMALL_TEXT);
  const config = { name: 'saved', strategy: 'fsdp', checkpoint: { every: 2, format: 'sharded' } };
  run = await api.until((await api.create(smallConfig(path, config))).id, 'finished');
  await request.dispose();
});

/** Clicks a link that downloads, and returns the file's bytes and the name it is saved under. */
async function download(page: Page, name: string): Promise<{ bytes: Buffer; saved: string }> {
  const started = page.waitForEvent('download');
  await page.getByRole('link', { name, exact: true }).click();
  const file = await started;
  return { bytes: await readFile(await file.path()), saved: file.suggestedFilename() };
}

const weightsOf = (name: string, bytes: Buffer): Promise<Weights> =>
  openWeights(bytesSource(name, new Uint8Array(bytes)));

test('a sharded checkpoint downloads as a tar, as one torch file and as safetensors: the same weights', async ({
  page,
}) => {
  expect(run.checkpoints.map(({ step, format }) => [step, format])).toEqual([
    [2, 'sharded'],
    [4, 'sharded'],
  ]);
  const { name } = run.checkpoints[1];
  await page.goto(`/runs/${run.id}`);
  const tar = await download(page, `Download ${name}`);
  expect(tar.saved).toMatch(/\.tar$/);
  expect(tar.bytes.length % 512).toBe(0);
  for (const file of ['.metadata', '__0_0.distcp', '__1_0.distcp', 'meta.pt'])
    expect(tar.bytes.includes(file), file).toBe(true);

  const ckpt = await download(page, `Download ${name} as .ckpt`);
  const safetensors = await download(page, `Download ${name} as .safetensors`);
  const [whole, alone] = await Promise.all([
    weightsOf('whole.ckpt', ckpt.bytes),
    weightsOf('alone.safetensors', safetensors.bytes),
  ]);
  expect([...whole.names].sort()).toEqual([...alone.names].sort());
  expect(whole.names.length).toBeGreaterThan(20);
  for (const tensor of whole.names) expect(await whole.readFloat32(tensor)).toEqual(await alone.readFloat32(tensor));
});

test('a checkpoint’s page shows what it holds, and a tensor’s values', async ({ page }) => {
  const { name, step } = run.checkpoints[1];
  await page.goto(`/runs/${run.id}`);
  await page.getByRole('region', { name: 'Checkpoints' }).getByRole('link', { name, exact: true }).click();
  await expect(page.getByRole('heading', { name })).toBeVisible();
  await expect(page.getByText(`after ${step} steps of`)).toBeVisible();
  const tensors = page.getByRole('region', { name: 'Tensors' });
  await expect(tensors).toContainText('transformer.encoder.layers.0.self_attn.in_proj_weight');
  await tensors.getByRole('searchbox').fill('embedding');
  await expect(tensors).not.toContainText('in_proj_weight');
  await expect(page.getByRole('region', { name: 'Files' })).toContainText('__1_0.distcp');

  const at = `/api/v1/runs/${run.id}/checkpoints/${name}`;
  const details = CheckpointDetails.parse(await (await page.request.get(`${at}/details`)).json());
  const embedding = details.tensors.find((tensor) => tensor.name.endsWith('embedding.weight'))!;
  const asked = await page.request.get(`${at}/tensor?tensor=${encodeURIComponent(embedding.name)}`);
  const { min, max, mean, elements, histogram } = TensorDetails.parse(await asked.json());
  const row = tensors.getByRole('listitem').filter({ hasText: embedding.name }).first();
  await row.getByText(embedding.name, { exact: true }).click();
  const five = (value: number | null) => String(Number(value!.toPrecision(5)));
  const shown = (label: string) => row.locator('dt', { hasText: new RegExp(`^${label}$`) }).locator('+ dd');
  await expect(shown('min')).toHaveText(five(min));
  await expect(shown('max')).toHaveText(five(max));
  await expect(shown('mean')).toHaveText(five(mean));
  expect(min).toBeLessThan(max!);

  // A bar for each bin, as high as its share of the fullest.
  const bars = row
    .getByRole('img', { name: `Histogram of the elements from ${five(min)} to ${five(max)}` })
    .locator('rect');
  await expect(bars).toHaveCount(histogram.length);
  const heights = await bars.evaluateAll((all) => all.map((bar) => Number(bar.getAttribute('height'))));
  const most = Math.max(...histogram);
  heights.forEach((height, bin) => {
    expect(height, `bin ${bin}`).toBeCloseTo((32 * histogram[bin]) / most, 6);
  });
  expect(histogram.reduce((a, b) => a + b, 0)).toBe(elements);

  expect(embedding.parts.map(({ rank }) => rank)).toEqual([0, 1]);
  for (const { rank, offsets, sizes } of embedding.parts)
    await expect(row).toContainText(`rank ${rank}: rows ${offsets[0]} to ${offsets[0] + sizes[0] - 1}`);
});

test('a run goes on from a checkpoint under another strategy', async ({ page, api }) => {
  const { name } = run.checkpoints[0];
  await page.goto(`/runs/${run.id}`);
  await page.getByRole('link', { name: `Resume from ${name}` }).click();
  await expect(page.getByRole('heading', { name: 'New run, from saved' })).toBeVisible();
  const field = (path: string) => page.locator(`[data-field="${path}"]`);
  await expect(field('checkpoint.resume').getByRole('textbox')).toHaveValue(new RegExp(`${name}$`));
  await field('strategy.kind').getByRole('radio', { name: 'DDP' }).check();
  await field('name').getByRole('textbox').fill('goes on');
  await page.getByRole('button', { name: 'Start run' }).click();
  await expect(page.getByRole('heading', { name: 'goes on' })).toBeVisible();
  await expect(page.getByTestId('run-state')).toHaveText('finished', { timeout: 60_000 });
  const [after] = (await api.runs()).filter((one) => one.name === 'goes on');
  // The same steps, the same numbers, in another strategy.
  expect([after.stepsDone, after.lossMean]).toEqual([run.stepsDone, run.lossMean]);
});

test('the checkpoint’s own page goes on under another strategy too', async ({ page }) => {
  const { name } = run.checkpoints[0];
  await page.goto(`/runs/${run.id}/checkpoints/${name}`);
  await page.getByRole('link', { name: 'Resume', exact: true }).click();
  await expect(page.getByRole('heading', { name: 'New run, from saved' })).toBeVisible();
  const field = (at: string) => page.locator(`[data-field="${at}"]`);
  await expect(field('checkpoint.resume').getByRole('textbox')).toHaveValue(`runs/${run.id}/checkpoints/${name}`);
  await field('strategy.shardingStrategy').getByRole('radio', { name: 'SHARD_GRAD_OP' }).check();
  await field('name').getByRole('textbox').fill('goes on again');
  await page.getByRole('button', { name: 'Start run' }).click();
  await expect(page.getByRole('heading', { name: 'goes on again' })).toBeVisible();
  await expect(page.getByTestId('run-state')).toHaveText('finished', { timeout: 60_000 });
});

test('“Save now” saves the run that trains, which trains on', async ({ page, api }) => {
  const { id } = await api.create(longConfig(path, 'asked to save'));
  await page.goto(`/runs/${id}`);
  await page.getByRole('button', { name: 'Save now' }).click();
  const list = page.getByRole('region', { name: 'Checkpoints' });
  await expect(list.getByRole('link', { name: /^step-\d{6}/ })).toBeVisible();
  await expect(page.getByTestId('run-state')).toHaveText('running');
  const [{ step }] = (await api.run(id)).checkpoints;
  await expect.poll(async () => (await api.run(id)).stepsDone).toBeGreaterThan(step);
  await page.getByRole('button', { name: 'Stop' }).click();
  await expect(page.getByTestId('run-state')).toHaveText('stopped');
  await expect(page.getByText('Stopped by request.')).toBeVisible();
});
