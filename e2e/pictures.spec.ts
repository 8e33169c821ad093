import { fileURLToPath } from 'node:url';
import type { Page } from '@playwright/test';
import { expect, test } from './studio.ts';

/**
 * The README's pictures, made again of a real quick-start by `STUDIO_PICTURES=1 npx playwright test pictures`; the same
 * pages in the dark and at 390 px go to test-results/, to be looked at.
 */
const README_IMAGES = fileURLToPath(new URL('../docs/images/', import.meta.url));
const looks = [
  { name: 'light', colorScheme: 'light', width: 1440 },
  { name: 'dark', colorScheme: 'dark', width: 1440 },
  { name: 'phone', colorScheme: 'light', width: 390 },
  { name: 'phone-dark', colorScheme: 'dark', width: 390 },
] as const;

test.setTimeout(900_000);

test('pictures of the empty studio, a comparison, a run and a new run', async ({ page, api }, testInfo) => {
  await api.deleteAllRuns();
  /** `until` names the part of the page at which the README's picture ends. */
  const shoot = async (name: string, until?: string) => {
    for (const { name: look, colorScheme, width } of looks) {
      await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
      await page.setViewportSize({ width, height: 1000 });
      await drawn(page);
      await page.screenshot({ path: testInfo.outputPath(`${name}-${look}.png`), fullPage: true });
      if (until === undefined || look !== 'light') continue;
      const rest = await page.getByRole('region', { name: until, exact: true }).boundingBox();
      const clip = { x: 0, y: 0, width, height: Math.floor(rest?.y ?? 1000) };
      await page.screenshot({ path: `${README_IMAGES}${name}.png`, fullPage: true, clip });
    }
    await page.setViewportSize({ width: 1440, height: 1000 });
  };

  await page.goto('/');
  await expect(page.getByText(/^FULL_SHARD: \d/)).toBeVisible();
  await shoot('empty');
  await page.getByRole('button', { name: 'Run the comparison' }).click();
  await page.waitForURL(/\/compare\?ids=/);
  const address = page.url();
  await expect(page.getByText('1 still going')).toBeVisible({ timeout: 600_000 });
  await expect(page.getByText(/^[3-9] \/ 15$/).first()).toBeVisible({ timeout: 300_000 });
  await shoot('compare-live');
  await expect(page.getByText('all ended')).toBeVisible({ timeout: 600_000 });
  await page.goto(address);
  await shoot('compare', 'Differing config fields');
  const ids = (new URL(address).searchParams.get('ids') as string).split(',');
  await page.goto(`/runs/${ids[1]}`);
  await expect(page.getByRole('log')).toContainText('share one adapter');
  await shoot('run', 'Log');
  await page.goto('/runs');
  await shoot('runs');
  await page.goto('/runs/new');
  await expect(page.getByText(/^planned in/)).toBeVisible();
  await shoot('new-run');
});

/** Charts follow the size and the theme on the next frames. */
async function drawn(page: Page): Promise<void> {
  await expect(page.locator('h1').first()).toBeVisible();
  await page.waitForTimeout(700);
}
