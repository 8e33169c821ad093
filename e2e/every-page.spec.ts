import type { Page } from '@playwright/test';
import { axeFindings, expect, longConfig, SMALL_TEXT, StudioApi, smallConfig, stickingOut, test } from './studio.ts';

/** Every page in every state that it has, for what holds of all of them. */
let pages: [name: string, path: string][];
let running: string;

test.beforeAll(async ({ playwright, baseURL }) => {
  const request = await playwright.request.newContext({ baseURL });
  const api = new StudioApi(request);
  const path = await api.upload('text', 'whale.txt', SMALL_TEXT);
  const made = [];
  for (const strategy of ['ddp', 'fsdp'])
    made.push(await api.create(smallConfig(path, { name: `every ${strategy}`, strategy })));
  const broken = await api.create(smallConfig(path, { name: 'every broken', memoryBudgetMiB: 0.05 }));
  const ids = made.map(({ id }) => id);
  for (const id of ids) await api.until(id, 'finished');
  const [{ name: checkpoint }] = (await api.run(ids[1])).checkpoints;
  await api.until(broken.id, 'failed');
  running = (await api.create(longConfig(path, 'every running'))).id;
  await api.until(running, 'running');
  pages = [
    ['the list', '/runs'],
    ['a new run', '/runs/new'],
    ['a clone', `/runs/new?from=${ids[0]}`],
    ['a finished run', `/runs/${ids[1]}`],
    ['a checkpoint', `/runs/${ids[1]}/checkpoints/${checkpoint}`],
    ['the uploaded checkpoints', '/checkpoints'],
    ['a running run', `/runs/${running}`],
    ['a failed run', `/runs/${broken.id}`],
    ['a comparison', `/compare?ids=${ids.join(',')}`],
    ['a live comparison', `/compare?ids=${ids[0]},${running}`],
    ['an empty comparison', '/compare'],
  ];
  await request.dispose();
});
test.afterAll(async ({ playwright, baseURL }) => {
  const request = await playwright.request.newContext({ baseURL });
  await request.post(`/api/v1/runs/${running}/stop`);
  await new StudioApi(request).until(running, 'stopped');
  await request.dispose();
});

/** Data is drawn: nothing says that it loads. */
async function opened(page: Page, path: string): Promise<void> {
  await page.goto(path);
  await expect(page.locator('h1').first()).toBeVisible();
  await expect(page.getByText(/^Loading|planning…|preparing the data/)).toHaveCount(0);
}

for (const colorScheme of ['light', 'dark'] as const)
  test(`axe finds nothing serious, ${colorScheme}`, async ({ page }) => {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    for (const [name, path] of pages) {
      await opened(page, path);
      expect(await axeFindings(page), name).toEqual([]);
    }
  });

test('at 390 px nothing sticks out, and every control can be reached', async ({ page }) => {
  await page.setViewportSize({ width: 390, height: 844 });
  for (const [name, path] of pages) {
    await opened(page, path);
    expect(await stickingOut(page), name).toEqual([]);
  }
  await page.goto('/runs/new');
  await page.getByRole('button', { name: 'Start run' }).click({ trial: true });
  await page.goto('/runs');
  await page.getByRole('link', { name: 'New run' }).first().click({ trial: true });
  await page.getByRole('checkbox', { name: 'Compare every ddp' }).check();
  await page.getByRole('checkbox', { name: 'Compare every fsdp' }).check();
  await page.getByRole('link', { name: 'Compare', exact: true }).click();
  await expect(page.getByRole('heading', { name: 'Comparison of 2 runs' })).toBeVisible();
});

test('the keyboard alone goes from the top of a page to a new run', async ({ page }) => {
  await opened(page, '/runs');
  await page.keyboard.press('Tab');
  await expect(page.getByRole('link', { name: 'Skip to content' })).toBeFocused();
  await page.keyboard.press('Enter');
  const start = page.getByRole('main').getByRole('link', { name: 'New run' });
  for (let i = 0; i < 10 && !(await start.evaluate((link) => link === document.activeElement)); i++)
    await page.keyboard.press('Tab');
  await expect(start).toBeFocused();
  await page.keyboard.press('Enter');
  await expect(page.getByRole('heading', { name: 'New run' })).toBeVisible();
  // Radio buttons move with the arrows.
  const fsdp = page.locator('[data-field="strategy.kind"]').getByRole('radio', { name: 'FSDP' });
  await fsdp.focus();
  await page.keyboard.press('ArrowLeft');
  await expect(page.locator('[data-field="strategy.kind"]').getByRole('radio', { name: 'DDP' })).toBeChecked();
});

test('the chosen theme stays', async ({ page }) => {
  await page.emulateMedia({ colorScheme: 'light' });
  await page.goto('/runs');
  const background = () => page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  const light = await background();
  await page.getByRole('button', { name: /^Theme: as the system/ }).click();
  await page.getByRole('button', { name: /^Theme: light/ }).click();
  await expect(page.getByRole('button', { name: /^Theme: dark/ })).toBeVisible();
  expect(await background()).not.toBe(light);
  await page.reload();
  expect(await background()).not.toBe(light);
});

test('what is not there says so, with a way on', async ({ page, refusals }) => {
  refusals.push(/\/nowhere$/, /\/api\/v1\/(runs\/|checkpoints\/|compare\?ids=)nothing/);
  for (const [path, said] of [
    ['/nowhere', 'There is nothing at this address'],
    ['/runs/nothing', 'There is no such run'],
    ['/compare?ids=nothing,nothing-2', 'One of these runs is gone'],
    ['/runs/new?from=nothing', 'The run to clone cannot be read'],
    ['/runs/new?init=uploads/nothing', 'The checkpoint to start from cannot be read'],
    ['/checkpoints/nothing', 'The checkpoint cannot be shown'],
  ]) {
    await page.goto(path);
    await expect(page.getByRole('heading', { name: said })).toBeVisible();
    await expect(page.getByRole('main').getByRole('link')).toBeVisible();
  }
});
