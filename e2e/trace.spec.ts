import { readFile } from 'node:fs/promises';
import type { Page } from '@playwright/test';
import { axeFindings, expect, longConfig, SMALL_TEXT, stickingOut, test } from './studio.ts';

/** A person asks a run that trains for a trace of a step, looks at it with mouse and keys, and takes it along. */
test('a step is traced, drawn, moved through with the keys, and downloaded', async ({ page, api, request }) => {
  const path = await api.upload('text', 'whale.txt', SMALL_TEXT);
  const { id } = await api.create(longConfig(path, 'traced'));
  await api.until(id, 'running');
  await page.goto(`/runs/${id}`);
  const panel = page.getByRole('region', { name: 'Trace of a step' });
  await panel.getByRole('button', { name: 'Trace a step' }).click();
  const drawing = panel.getByTestId('trace');
  await expect(drawing).toBeVisible({ timeout: 60_000 });
  await expect(panel.getByRole('heading', { name: /^Trace of step \d+/ })).toBeVisible();
  await request.post(`/api/v1/runs/${id}/stop`);
  await api.until(id, 'stopped');

  // The keys: into the compute lane, along it, to the lane below.
  const reading = panel.getByTestId('trace-reading');
  await drawing.focus();
  await page.keyboard.press('ArrowRight');
  await expect(reading).toContainText('rank 0 · compute');
  await page.keyboard.press('End');
  const last = await reading.textContent();
  await page.keyboard.press('ArrowLeft');
  await expect(reading).not.toHaveText(last ?? '');
  await page.keyboard.press('ArrowDown');
  await expect(reading).toContainText('rank 0 · comm');
  await page.keyboard.press('Enter');
  await expect(panel.getByRole('button', { name: 'All', exact: true })).toBeEnabled();
  await page.keyboard.press('0');
  await expect(panel.getByRole('button', { name: 'All', exact: true })).toBeDisabled();

  // The pointer: over the live bytes at the bottom, and a drag that zooms.
  const box = (await drawing.boundingBox())!;
  await page.mouse.move(box.x + box.width / 2, box.y + box.height - 40);
  await expect(reading).toContainText('live on rank 1');
  await page.mouse.move(box.x + box.width * 0.4, box.y + 35);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * 0.6, box.y + 35, { steps: 4 });
  await page.mouse.up();
  await expect(panel.getByRole('button', { name: 'All', exact: true })).toBeEnabled();

  const [download] = await Promise.all([
    page.waitForEvent('download'),
    panel.getByRole('link', { name: 'Chrome trace' }).click(),
  ]);
  const trace = JSON.parse(await readFile(await download.path(), 'utf8'));
  expect(trace.otherData.ranks).toBe(2);
  expect(new Set(trace.traceEvents.map(({ pid }: { pid: number }) => pid))).toEqual(new Set([0, 1]));

  // The run is over: what was traced stays, nothing more can be asked for.
  await expect(panel.getByRole('button', { name: 'Trace a step' })).toHaveCount(0);
  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    expect(await axeFindings(page)).toEqual([]);
  }
  await expectNoOverflow(page);
});

async function expectNoOverflow(page: Page): Promise<void> {
  await page.setViewportSize({ width: 390, height: 844 });
  // The drawings hear of their new width a frame or two later.
  await expect.poll(() => stickingOut(page)).toEqual([]);
}
