import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Page } from '@playwright/test';
import { BroughtCheckpointList, type Run } from '../server/contract.ts';
import { axeFindings, expect, SMALL_TEXT, StudioApi, smallConfig, stickingOut, test } from './studio.ts';

const malicious = fileURLToPath(new URL('../engine/testdata/malicious.pt', import.meta.url));
let work: string;
/** A real run's folder, and the same as what a person may have: a tar, one torch file, weights. */
let run: Run;
const mine = { tar: '', ckpt: '', safetensors: '' };

// Each test goes on with what the ones before it brought.
test.describe.configure({ mode: 'serial' });

test.beforeAll(async ({ playwright, baseURL }) => {
  const request = await playwright.request.newContext({ baseURL });
  const api = new StudioApi(request);
  work = mkdtempSync(join(tmpdir(), 'library-'));
  for (const { name } of await brought(request))
    await request.delete(`/api/v1/checkpoints/${encodeURIComponent(name)}`);
  const path = await api.upload('text', 'whale.txt', SMALL_TEXT);
  const config = { name: 'taught', strategy: 'fsdp', checkpoint: { format: 'sharded' } };
  run = await api.until((await api.create(smallConfig(path, config))).id, 'finished');
  for (const [form, as] of [
    ['tar', ''],
    ['ckpt', '?as=full'],
    ['safetensors', '?as=safetensors'],
  ] as const) {
    mine[form] = join(work, `mine.${form}`);
    const answer = await request.get(`/api/v1/runs/${run.id}/checkpoints/${run.checkpoints[0].name}${as}`);
    await writeFile(mine[form], await answer.body());
  }
  await request.dispose();
});
test.afterAll(() => rmSync(work, { recursive: true, force: true }));

type Asker = Pick<Page['request'], 'get'>;
const brought = async (request: Asker) =>
  BroughtCheckpointList.parse(await (await request.get('/api/v1/checkpoints')).json()).checkpoints;

/** Drops files on the page, as a hand does: a drag that enters, then the drop. */
async function drop(page: Page, ...paths: string[]): Promise<void> {
  const files = paths.map((path) => ({ name: basename(path), data: readFileSync(path).toString('base64') }));
  const dropped = await page.evaluateHandle((all) => {
    const transfer = new DataTransfer();
    for (const { name, data } of all)
      transfer.items.add(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name));
    return transfer;
  }, files);
  const zone = page.getByTestId('drop-zone');
  await zone.dispatchEvent('dragover', { dataTransfer: dropped });
  await expect(page.getByText('Drop to upload it')).toBeVisible();
  await zone.dispatchEvent('drop', { dataTransfer: dropped });
  await expect(page.getByText('Drop to upload it')).toHaveCount(0);
}

async function looksRight(page: Page): Promise<void> {
  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    expect(await axeFindings(page), colorScheme).toEqual([]);
  }
  await page.setViewportSize({ width: 390, height: 844 });
  expect(await stickingOut(page)).toEqual([]);
  await page.setViewportSize({ width: 1440, height: 900 });
  await page.emulateMedia({ colorScheme: 'light' });
}

test('an empty library says what can be uploaded, and where runs’ own checkpoints are; each form is dropped, verified and listed', async ({
  page,
}) => {
  await page.goto('/runs');
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Checkpoints' }).click();
  await expect(page.getByRole('heading', { name: 'Upload a checkpoint' })).toBeVisible();
  await expect(page.getByRole('link', { name: 'the list of runs' })).toHaveAttribute('href', '/runs');
  await looksRight(page);

  await drop(page, mine.tar, mine.ckpt, mine.safetensors);
  const list = page.getByRole('table', { name: 'Uploaded checkpoints' });
  for (const name of ['mine', 'mine.ckpt', 'mine.safetensors']) {
    const row = list.getByRole('row').filter({ has: page.getByRole('link', { name, exact: true }) });
    await expect(row).toContainText('verified');
    await expect(row).toContainText(String(run.checkpoints[0].step));
  }
  await expect(page.getByRole('list', { name: 'Uploads' }).getByText('Verified, as')).toHaveCount(3);
  await expect(page.getByText('3 uploaded or converted')).toBeVisible();
  await looksRight(page);
  const all = await brought(page.request);
  expect(all.map(({ holds }) => holds?.kind).sort()).toEqual(['full', 'safetensors', 'sharded']);
  expect(new Set(all.map(({ holds }) => holds?.params)).size).toBe(1);
});

test('a file that is made to do harm is refused by the name of what it would call; nothing of it stays', async ({
  page,
  refusals,
}) => {
  refusals.push(/\/api\/v1\/files/);
  await page.goto('/checkpoints');
  const before = await brought(page.request);
  const text = join(work, 'notes.txt');
  await writeFile(text, 'no checkpoint');
  await drop(page, malicious, text);
  const uploads = page.getByRole('list', { name: 'Uploads' });
  await expect(uploads.getByRole('alert').filter({ hasText: 'posix.system' })).toBeVisible();
  await expect(uploads.getByRole('alert').filter({ hasText: 'It ends in none of .ckpt' })).toBeVisible();
  await looksRight(page);
  await uploads.getByRole('button', { name: 'Dismiss malicious.pt' }).click();
  await expect(uploads.getByText('malicious.pt')).toHaveCount(0);
  expect(await brought(page.request)).toEqual(before);
});

test('an upload can be cancelled, and leaves nothing', async ({ page }) => {
  await page.goto('/checkpoints');
  const before = await brought(page.request);
  await page.route('**/api/v1/files?*', () => undefined); // never answered
  await drop(page, mine.ckpt);
  await page.getByRole('button', { name: 'Cancel the upload of mine.ckpt' }).click();
  await expect(page.getByRole('list', { name: 'Uploads' })).toHaveCount(0);
  expect(await brought(page.request)).toEqual(before);
});

test('its page shows what it holds as a run’s does, verifies it and says which file is damaged', async ({ page }) => {
  await page.goto('/checkpoints');
  await page.getByRole('link', { name: 'mine', exact: true }).click();
  await expect(page.getByRole('heading', { name: 'mine', exact: true })).toBeVisible();
  await expect(page.getByText('after 4 steps')).toBeVisible();
  const tensors = page.getByRole('region', { name: 'Tensors' });
  await tensors.getByRole('searchbox').fill('embedding');
  const row = tensors.getByRole('listitem').filter({ hasText: 'embedding.weight' }).first();
  await row.getByText('embedding.weight').first().click();
  await expect(row).toContainText('rank 1: rows');
  await expect(row.getByRole('img', { name: /^Histogram/ })).toBeVisible();
  await expect(page.getByRole('region', { name: 'Config', exact: true })).toContainText('name: taught');

  const files = page.getByRole('region', { name: 'Files' });
  await files.getByRole('button', { name: 'Verify' }).click();
  await expect(files.getByText('Verified: every file is what its SHA-256 says.')).toBeVisible();
  await expect(files.getByRole('listitem').getByText('verified:')).toHaveCount(4);
  await looksRight(page);

  // A disk that forgets a bit.
  const shard = join(process.env.STUDIO_E2E_DATA as string, 'uploads', 'mine', '__1_0.distcp');
  const whole = readFileSync(shard);
  const damaged = Buffer.from(whole);
  damaged[damaged.length - 300] ^= 1;
  await writeFile(shard, damaged);
  await files.getByRole('button', { name: 'Verify' }).click();
  await expect(files.getByRole('alert')).toContainText('__1_0.distcp has changed since it was written');
  await expect(files.getByRole('listitem').getByText('damaged:')).toHaveCount(1);
  await expect(files.getByRole('listitem').getByText('verified:')).toHaveCount(3);
  await looksRight(page);
  await writeFile(shard, whole);
});

test('a run’s checkpoint is verified too, and converted into one of the uploaded, which downloads as tar reads it', async ({
  page,
}) => {
  await page.goto(`/runs/${run.id}/checkpoints/${run.checkpoints[0].name}`);
  const files = page.getByRole('region', { name: 'Files' });
  await files.getByRole('button', { name: 'Verify' }).click();
  await expect(files.getByText('Verified: every file is what its SHA-256 says.')).toBeVisible();

  const convert = page.getByRole('region', { name: 'Convert' });
  await convert.getByRole('radio', { name: 'Folder' }).check();
  await convert.getByLabel('Ranks').fill('0');
  await expect(convert.getByText('a whole number from 1 to 1,024')).toBeVisible();
  await expect(convert.getByRole('button', { name: 'Convert' })).toBeDisabled();
  await convert.getByLabel('Ranks').fill('3');
  await convert.getByLabel('Name').fill('in three');
  await convert.getByRole('button', { name: 'Convert' }).click();
  await expect(convert.getByRole('link', { name: 'in-three', exact: true })).toBeVisible();
  await looksRight(page);
  const started = page.waitForEvent('download');
  await convert.getByRole('link', { name: 'Download in-three' }).click();
  const file = await started;
  const listed = execFileSync('tar', ['-tf', await file.path()], { encoding: 'utf8' })
    .trim()
    .split('\n');
  expect(
    listed
      .map((name) => name.replace(/^[^/]*\/?/, ''))
      .filter(Boolean)
      .sort(),
  ).toEqual(['.metadata', '__0_0.distcp', '__1_0.distcp', '__2_0.distcp', 'meta.pt'].sort());
  await convert.getByRole('link', { name: 'in-three', exact: true }).click();
  await expect(page.getByRole('heading', { name: 'in-three' })).toBeVisible();
  await expect(page.getByRole('region', { name: 'Files' })).toContainText('__2_0.distcp');
});

test('what was uploaded starts a run as its weights, and goes on in one that resumes it', async ({ page, api }) => {
  const field = (at: string) => page.locator(`[data-field="${at}"]`);
  const startRun = async (name: string) => {
    await field('name').getByRole('textbox').fill(name);
    await page.getByRole('button', { name: 'Start run' }).click();
    await expect(page.getByRole('heading', { name })).toBeVisible();
    await expect(page.getByTestId('run-state')).toHaveText('finished', { timeout: 60_000 });
    return (await api.runs()).find((one) => one.name === name)!;
  };
  await page.goto('/checkpoints');
  await page.getByRole('link', { name: 'Start from its weights: mine.safetensors' }).click();
  await expect(page.getByRole('heading', { name: 'New run, from mine.safetensors' })).toBeVisible();
  await expect(field('init.from').locator('input[type=text]')).toHaveValue('uploads/mine.safetensors');
  const begun = await startRun('from weights');
  expect(begun.stepsDone).toBe(4);

  await page.goto('/checkpoints/mine');
  await page.getByRole('link', { name: 'Resume', exact: true }).click();
  await expect(field('checkpoint.resume').locator('input[type=text]')).toHaveValue('uploads/mine');
  await field('strategy.kind').getByRole('radio', { name: 'DDP' }).check();
  const resumed = await startRun('from the folder');
  // As many steps again as were done.
  expect(resumed.steps).toBe(8);
  expect((await api.run(resumed.id)).checkpoints.at(-1)?.step).toBe(8);
});

test('deleting asks first', async ({ page }) => {
  await page.goto('/checkpoints/mine.ckpt');
  await page.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('button', { name: 'Cancel' }).click();
  await expect(page.getByRole('alertdialog')).toHaveCount(0);
  await page.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('alertdialog').getByRole('button', { name: 'Delete' }).click();
  await expect(page.getByRole('table', { name: 'Uploaded checkpoints' })).toBeVisible();
  await expect(page.getByRole('link', { name: 'mine.ckpt', exact: true })).toHaveCount(0);
  expect((await brought(page.request)).map(({ name }) => name)).not.toContain('mine.ckpt');
});
