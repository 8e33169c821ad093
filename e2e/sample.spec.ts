import type { Run } from '../server/contract.ts';
import { axeFindings, expect, SMALL_TEXT, StudioApi, smallConfig, stickingOut, test } from './studio.ts';

const llama = {
  kind: 'llama',
  hiddenSize: 16,
  intermediateSize: 32,
  numHiddenLayers: 1,
  numAttentionHeads: 2,
  numKeyValueHeads: 1,
};

let run: Run;
let demo: Run;
test.beforeAll(async ({ playwright, baseURL }) => {
  const request = await playwright.request.newContext({ baseURL });
  const api = new StudioApi(request);
  const path = await api.upload('text', 'whale.txt', SMALL_TEXT);
  const started = await api.create(smallConfig(path, { name: 'llama', model: llama, strategy: 'ddp' }));
  const other = await api.create(smallConfig(path, { name: 'demo' }));
  run = await api.until(started.id, 'finished');
  demo = await api.until(other.id, 'finished');
  await request.dispose();
});

const pageOf = ({ id, checkpoints }: Run) => `/runs/${id}/checkpoints/${checkpoints[0].name}`;

test('a checkpoint’s page continues a text, the same with the same seed', async ({ page }) => {
  await page.goto(pageOf(run));
  const panel = page.getByRole('region', { name: 'Sample a text', exact: true });
  const drawn = panel.getByTestId('sampled');
  await panel.getByLabel('Prompt', { exact: true }).fill('the whale saw');
  await panel.getByLabel('Tokens', { exact: true }).fill('8');
  await panel.getByRole('button', { name: 'Sample' }).click();
  await expect(panel.getByText('8 of 8 tokens')).toBeVisible();
  const first = await drawn.textContent();
  expect(first).toMatch(/^the whale saw \S/);
  await panel.getByLabel('Seed').fill('7');
  await panel.getByRole('button', { name: 'Sample' }).click();
  await expect(drawn).not.toHaveText(first as string);
  await expect(panel.getByText('8 of 8 tokens')).toBeVisible();
  await panel.getByLabel('Seed').fill('0');
  await panel.getByRole('button', { name: 'Sample' }).click();
  await expect(drawn).toHaveText(first as string);

  await panel.getByRole('radio', { name: 'Token ids' }).check();
  await panel.getByRole('textbox', { name: 'Token ids' }).fill('0, 1 2');
  await panel.getByRole('button', { name: 'Sample' }).click();
  await expect(panel.getByText('8 of 8 tokens')).toBeVisible();
  expect(await axeFindings(page)).toEqual([]);
  await page.setViewportSize({ width: 390, height: 844 });
  expect(await stickingOut(page)).toEqual([]);
});

test('it can be cancelled, and says what is wrong where it is', async ({ page, refusals }) => {
  refusals.push(/\/sample$/);
  await page.goto(pageOf(run));
  const panel = page.getByRole('region', { name: 'Sample a text', exact: true });
  const go = panel.getByRole('button', { name: 'Sample' });
  await panel.getByLabel('Prompt', { exact: true }).fill('the kraken slept');
  await go.click();
  await expect(panel.getByRole('alert')).toContainText('the model knows no "kraken"');

  await panel.getByLabel('Tokens', { exact: true }).fill('2000');
  await expect(panel.getByLabel('Tokens', { exact: true })).toHaveAccessibleDescription(
    'a whole number from 1 to 1,000',
  );
  await expect(go).toBeDisabled();
  await panel.getByLabel('Tokens', { exact: true }).fill('1000');
  await panel.getByLabel('Prompt', { exact: true }).fill('the ship saw the moon');
  await go.click();
  await expect(panel.getByText(/^[1-9]\d* of 1,000 tokens$/)).toBeVisible();
  await panel.getByRole('button', { name: 'Cancel' }).click();
  await expect(panel.getByText(/of 1,000 tokens, cancelled$/)).toBeVisible();
  await expect(go).toBeEnabled();
});

test('the demo Transformer says why it cannot', async ({ page }) => {
  await page.goto(pageOf(demo));
  await expect(page.getByRole('region', { name: 'Sample a text' })).toContainText('Checkpoints of GPT-2 and Llama can');
});
