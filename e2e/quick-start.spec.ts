import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import type { Page } from '@playwright/test';
import { formatBytes, formatLoss, formatMs, formatMsRange } from '../app/_lib/format.ts';
import type { Run } from '../server/contract.ts';
import { expect, type StudioApi, stickingOut, test } from './studio.ts';

/** Two runs of two ranks each on a software GPU; a quiet machine takes a quarter of this. */
const QUICK_START_MS = 240_000;

test.describe.configure({ mode: 'serial' });
test.setTimeout(QUICK_START_MS + 60_000);

let ids: string[] = [];

test('one click on the empty page trains DDP and FULL_SHARD, live, to their comparison', async ({ page, api }) => {
  await api.deleteAllRuns();
  await page.goto('/');
  await expect(page.getByRole('heading', { name: 'What does each way of sharding cost?' })).toBeVisible();
  const predicted = page.getByRole('region', { name: 'Predicted memory of the quick start' });
  const foretold = [predicted.getByText(/^DDP: \d/), predicted.getByText(/^FULL_SHARD: \d/)];
  const said = await Promise.all(foretold.map((one) => one.textContent()));
  await page.getByRole('button', { name: 'Run the comparison' }).click();
  await page.waitForURL(/\/compare\?ids=/);
  ids = (new URL(page.url()).searchParams.get('ids') as string).split(',');
  expect(ids).toHaveLength(2);

  await expect(page.getByRole('heading', { name: 'Comparison of 2 runs' })).toBeVisible();
  await expect(page.getByText(/\d still going/)).toBeVisible();
  await expectLive(page, 'Progress of DDP, 2 ranks');
  await expectLive(page, 'Progress of FULL_SHARD, 2 ranks');
  await expect(page.getByText('all ended')).toBeVisible({ timeout: QUICK_START_MS });
  await expectAsMeasured(page, api);
  const { runs } = await api.compare(ids);
  expect(said).toEqual(runs.map(({ run, peakBytes }) => `${run.strategy}: ${formatBytes(peakBytes)}`));
});

test('the comparison opened again shows the same, and what differs', async ({ page, api }) => {
  await page.goto(`/compare?ids=${ids.join(',')}`);
  await expectAsMeasured(page, api);
  await expect(page.getByTestId('headline')).toContainText(
    'Their losses are equal to the last bit at the 15 steps that all have.',
  );
  const fields = page.getByRole('table', { name: 'Differing config fields' });
  const kind = fields.getByRole('row', { name: /^strategy\.kind/ });
  await expect(kind.getByRole('cell')).toHaveText(['ddp', 'fsdp']);
  const download = page.waitForEvent('download');
  await page.getByRole('button', { name: 'Export CSV' }).click();
  const csv = await readFile(await (await download).path(), 'utf8');
  const { runs } = await api.compare(ids);
  for (const { run, peakBytes, iterationMs } of runs) {
    const row = csv.split('\r\n').find((line) => line.includes(run.id));
    expect(row).toContain(`,${peakBytes},`);
    expect(row).toContain(`,${iterationMs},`);
  }
  // On a phone too every figure is in sight.
  await page.setViewportSize({ width: 390, height: 844 });
  for (const { peakBytes, iterationMs } of runs) {
    const row = page.getByRole('table', { name: 'Comparison', exact: true }).locator(`[data-bytes="${peakBytes}"]`);
    await expect(row).toBeVisible();
    await expect(page.locator(`[data-ms="${iterationMs}"]`)).toBeVisible();
  }
  expect(await stickingOut(page)).toEqual([]);
});

test('a run shows its loss, its memory as predicted to the byte, its log and its summary', async ({ page, api }) => {
  const run = await api.run(ids[1]);
  await page.goto(`/compare?ids=${ids.join(',')}`);
  await page.getByRole('table', { name: 'Comparison', exact: true }).getByRole('link', { name: run.name }).click();
  await expect(page.getByTestId('run-state')).toHaveText('finished');
  await expect(page.getByText(`${run.steps} of ${run.steps} steps`, { exact: true })).toBeVisible();
  await expect(tile(page, 'Loss')).toContainText(formatLoss(run.lossMean));
  await expect(tile(page, 'Peak reserved')).toContainText(formatBytes(run.peakBytes));
  const mean = `mean ${formatLoss(run.lossMean)}`;
  await expect(
    page.getByRole('img', { name: `Loss over ${run.steps} steps. At step ${run.steps - 1}:` }),
  ).toHaveAccessibleName(new RegExp(`${mean.replace('.', '\\.')}`));

  // Law 1 where a person sees it.
  expect(run.predicted?.peakBytes).toBe(run.peakBytes);
  const memory = page.getByRole('table', { name: 'Predicted and measured memory by category' });
  await expect(memory.getByRole('row')).toHaveCount(10);
  await expect(memory.getByTitle('equal to the byte')).toHaveCount(9);

  const time = page.getByTestId('predicted-time');
  await expect(time).toContainText(`predicted${formatMs(run.predicted?.estimateMs)}`);
  await expect(time).toContainText(`measured${formatMs(run.iterationMs)}`);

  await expect(page.getByRole('log')).toContainText('2 ranks share one adapter');
  const summary = page.getByRole('region', { name: 'Memory summary', exact: true });
  await expect(summary).toContainText('By category, on ');
  await summary.getByRole('radio', { name: 'Rank 1' }).check();
  await expect(summary.getByRole('region', { name: 'Memory summary of rank 1' })).toBeVisible();
  // A phone has each name over its numbers; nothing is cut.
  await page.setViewportSize({ width: 390, height: 844 });
  await expect(summary.getByText('Allocated memory', { exact: true })).toBeVisible();
  await expect(summary.locator('pre')).toBeHidden();
  expect(await stickingOut(page)).toEqual([]);
});

test('its checkpoint downloads whole, with the digest that the page shows, and by range', async ({
  page,
  api,
  request,
}) => {
  const run = await api.run(ids[1]);
  expect(run.checkpoints).toHaveLength(1);
  const [{ name, bytes, sha256, step }] = run.checkpoints;
  expect(step).toBe(run.steps);
  await page.goto(`/runs/${run.id}`);
  const list = page.getByRole('region', { name: 'Checkpoints' });
  await expect(list).toContainText(sha256);
  await expect(list).toContainText(formatBytes(bytes));
  const started = page.waitForEvent('download');
  await list.getByRole('link', { name: `Download ${name}`, exact: true }).click();
  const file = await readFile(await (await started).path());
  expect(file.length).toBe(bytes);
  expect(createHash('sha256').update(file).digest('hex')).toBe(sha256);

  const url = `/api/v1/runs/${run.id}/checkpoints/${name}`;
  const part = await request.get(url, { headers: { range: 'bytes=1000-1999' } });
  expect(part.status()).toBe(206);
  expect(part.headers()['content-range']).toBe(`bytes 1000-1999/${bytes}`);
  expect((await part.body()).equals(file.subarray(1000, 2000))).toBe(true);
  const rest = await request.get(url, { headers: { range: `bytes=${bytes - 10}-` } });
  expect((await rest.body()).equals(file.subarray(-10))).toBe(true);
  expect((await request.get(url, { headers: { range: `bytes=${bytes}-` } })).status()).toBe(416);
});

/** The bar of a run appears, and moves. */
async function expectLive(page: Page, name: string): Promise<void> {
  const bar = page.getByRole('progressbar', { name });
  const done = async () => Number((await bar.getAttribute('aria-valuenow')) ?? 0);
  await expect(bar).toBeVisible({ timeout: QUICK_START_MS });
  await expect.poll(done, { timeout: QUICK_START_MS, intervals: [100] }).toBeGreaterThan(0);
}

/** Every number of the page's tables is the interface's own. */
async function expectAsMeasured(page: Page, api: StudioApi): Promise<void> {
  const { runs } = await api.compare(ids);
  expect(runs.map(({ run }) => run.state)).toEqual(['finished', 'finished']);
  const table = page.getByRole('table', { name: 'Comparison', exact: true });
  const body = table.locator('tbody').getByRole('row');
  await expect(body).toHaveCount(2);
  await expect(body.first().locator('[data-ms]')).toHaveAttribute('data-ms', String(runs[0].iterationMs));
  for (const [i, { run, peakBytes, iterationMs, iterationSpread, lossMeans }] of runs.entries()) {
    const row = body.nth(i);
    await expect(row).toContainText(run.strategy);
    await expect(row.locator('[data-bytes]')).toHaveAttribute('data-bytes', String(peakBytes));
    await expect(row.locator('[data-bytes]')).toHaveText(formatBytes(peakBytes));
    await expect(row.locator('[data-ms]')).toHaveAttribute('data-ms', String(iterationMs));
    await expect(row.locator('[data-ms]')).toHaveText(formatMs(iterationMs));
    const { minMs, maxMs, steps } = iterationSpread as NonNullable<typeof iterationSpread>;
    expect(steps).toBe(run.steps - 1);
    await expect(row).toContainText(formatMsRange(minMs, maxMs));
    await expect(row).toContainText(formatLoss(run.lossMean));
    expect(lossMeans).toHaveLength(run.steps);
    expect(run.lossMean).toBe(lossMeans.at(-1));
    expectLearned(run, lossMeans.map(Number));
  }
  // Law 2: the strategies end at the same loss, bit for bit.
  expect(runs[0].lossMeans).toEqual(runs[1].lossMeans);
  expect(runs[1].peakBytes as number).toBeLessThan(runs[0].peakBytes as number);
}

function expectLearned({ name }: Pick<Run, 'name'>, losses: readonly number[]): void {
  expect(losses.length, name).toBeGreaterThanOrEqual(10);
  expect(losses[losses.length - 1], name).toBeLessThan(losses[0] - 1);
}

const tile = (page: Page, name: string) =>
  page.locator('dl > div').filter({ has: page.getByText(name, { exact: true }) });
