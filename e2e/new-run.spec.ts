import type { Page } from '@playwright/test';
import { expect, longConfig, SMALL_TEXT, smallConfig, test } from './studio.ts';

let path: string;
test.beforeAll(async ({ playwright, baseURL }) => {
  const request = await playwright.request.newContext({ baseURL });
  const { StudioApi } = await import('./studio.ts');
  path = await new StudioApi(request).upload('text', 'whale.txt', SMALL_TEXT);
  await request.dispose();
});

const field = (page: Page, path: string) => page.locator(`[data-field="${path}"]`);
const box = (page: Page, path: string) => field(page, path).getByRole('textbox');
const peak = async (page: Page) => Number(await page.getByTestId('predicted-peak').getAttribute('data-bytes'));

test('the prediction follows what one types, and equals what the run then holds', async ({ page, api }) => {
  await page.goto('/runs/new');
  await expect(page.getByTestId('predicted-peak')).toBeVisible();
  const before = await peak(page);
  await box(page, 'model.nhid').fill('4096');
  await expect.poll(() => peak(page)).toBeGreaterThan(before);
  const fullShard = await peak(page);
  await field(page, 'strategy.kind').getByRole('radio', { name: 'DDP' }).check();
  await expect.poll(() => peak(page)).toBeGreaterThan(fullShard);

  await box(page, 'memoryBudgetMiB').fill('20');
  await expect(page.getByTestId('budget-verdict')).toContainText('Over the budget of 20.0 MiB');
  await box(page, 'memoryBudgetMiB').fill('4000');
  await expect(page.getByTestId('budget-verdict')).toContainText('Fits the budget');

  await page.getByRole('radio', { name: 'YAML' }).check();
  const config = smallConfig(path, { name: 'typed' });
  await page.getByRole('textbox', { name: 'Config as YAML' }).fill(JSON.stringify(config));
  await page.getByRole('radio', { name: 'Form' }).check();
  await expect(box(page, 'name')).toHaveValue('typed');
  await expect(page.getByRole('status').filter({ hasText: 'planned in' })).toBeVisible();
  await expect.poll(() => peak(page)).toBeLessThan(before / 10);
  const predicted = await peak(page);
  await page.getByRole('button', { name: 'Start run' }).click();
  await page.waitForURL(/\/runs\/(?!new)[^/?]+$/);
  const id = page.url().split('/').at(-1) as string;
  const run = await api.until(id, 'finished');
  expect(run.peakBytes).toBe(predicted);
  await expect(page.getByTestId('run-state')).toHaveText('finished');
});

test('what is wrong is explained at its field, and nothing starts until it is right', async ({
  page,
  api,
  refusals,
}) => {
  // The browser itself notes every answer that is an error.
  refusals.push(/\/corpora\?.*absent\.txt/, /\/api\/v1\/runs$/);
  const before = (await api.runs()).length;
  await page.goto('/runs/new');
  const start = page.getByRole('button', { name: 'Start run' });
  await expect(start).toBeEnabled();
  const wrong: [path: string, typed: string, said: RegExp][] = [
    ['trainer.steps', '0', /at least 1/],
    ['model.ninp', 'wide', /needs a number, not .wide/],
    ['optimizer.lr', '-1', /at least 0/],
    ['name', '', /needs a value/],
  ];
  for (const [at, typed, said] of wrong) {
    const right = await box(page, at).inputValue();
    await box(page, at).fill(typed);
    await expect(field(page, at)).toContainText(said);
    await expect(box(page, at)).toHaveAttribute('aria-invalid', 'true');
    await expect(box(page, at)).toHaveAccessibleDescription(said);
    await expect(page.getByText('1 field to fix').first()).toBeVisible();
    await expect(start).toBeDisabled();
    await box(page, at).fill(right);
    await expect(start).toBeEnabled();
  }
  // A contradiction between two fields is told where it can be mended.
  await box(page, 'model.nhead').fill('5');
  await expect(field(page, 'model.nhead')).toContainText('5 does not divide model.ninp 32');
  await expect(start).toBeDisabled();
  await box(page, 'model.nhead').fill('4');
  await expect(start).toBeEnabled();
  // What only the planner knows, since it has the model, too.
  const units = field(page, 'strategy.autoWrapPolicy');
  const classes = units.getByRole('textbox');
  const right = await classes.inputValue();
  await classes.fill('GPT2Block');
  await expect(units).toContainText('GPT2Block matches no module of this model. It has');
  await expect(start).toBeDisabled();
  await classes.fill(right);
  await expect(start).toBeEnabled();
  // What only the server knows comes back to the field.
  await field(page, 'data.kind')
    .getByRole('radio', { name: /text file/i })
    .check({ force: true });
  await box(page, 'data.path').or(field(page, 'data.path').getByRole('combobox')).fill('uploads/absent.txt');
  await start.click();
  await expect(field(page, 'data.path')).toContainText('uploads/absent.txt');
  expect((await api.runs()).length).toBe(before);
});

test('YAML that cannot be read, and unknown keys, are named with their place', async ({ page }) => {
  await page.goto('/runs/new');
  await page.getByRole('radio', { name: 'YAML' }).check();
  const text = page.getByRole('textbox', { name: 'Config as YAML' });
  const said = page.getByRole('region', { name: 'Config as YAML' }).getByRole('alert');
  await text.fill('name: x\nmodel: {');
  await expect(said).toContainText(/Line \d/);
  await text.fill('learningRate: 1');
  await expect(said).toContainText('learningRate: unknown key');
  await text.fill('devices: 9');
  await expect(said).toContainText('devices: at most 8 ranks');
  await expect(page.getByRole('button', { name: 'Start run' })).toBeDisabled();
});

test('a run is stopped, cloned and deleted', async ({ page, api }) => {
  const { id } = await api.create(longConfig(path));
  await page.goto(`/runs/${id}`);
  const state = page.getByTestId('run-state');
  await expect(state).toHaveText('running');
  const bar = page.getByRole('progressbar', { name: 'Progress of the run' });
  await expect.poll(async () => Number(await bar.getAttribute('aria-valuenow'))).toBeGreaterThan(2);
  await expect(page.getByTestId('time-left')).toHaveText(/^about .+ left$/);
  await page.getByRole('button', { name: 'Stop' }).click();
  await expect(state).toHaveText('stopped');
  const stopped = await api.until(id, 'stopped');
  expect(stopped.stepsDone).toBeGreaterThan(2);
  // Saved where it stopped.
  expect(stopped.checkpoints.map(({ step }) => step)).toEqual([stopped.stepsDone]);
  await expect(page.getByRole('link', { name: `Download ${stopped.checkpoints[0].name}`, exact: true })).toBeVisible();

  await page.getByRole('link', { name: 'Clone' }).click();
  await expect(page.getByRole('heading', { name: 'New run, from long' })).toBeVisible();
  await expect(box(page, 'name')).toHaveValue('long-2');
  await expect(box(page, 'model.ninp')).toHaveValue('64');
  await box(page, 'trainer.steps').fill('2');
  await page.getByRole('button', { name: 'Start run' }).click();
  await expect(page.getByRole('heading', { name: 'long-2' })).toBeVisible();
  await expect(state).toHaveText('finished');

  await page.goto(`/runs/${id}`);
  await page.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('alertdialog').getByRole('button', { name: 'Cancel' }).click();
  await expect(page.getByRole('alertdialog')).toBeHidden();
  await page.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('button', { name: 'Delete the run' }).click();
  await page.waitForURL(/\/runs$/);
  await expect(page.getByRole('link', { name: 'long-2' })).toBeVisible();
  await expect(page.getByRole('link', { name: 'long', exact: true })).toHaveCount(0);
  expect((await api.runs()).some((run) => run.id === id)).toBe(false);
});

test('a run that fails says why and where, and opens the way out', async ({ page, api }) => {
  const { id } = await api.create(smallConfig(path, { name: 'too-big', memoryBudgetMiB: 0.05 }));
  const failed = await api.until(id, 'failed');
  expect(failed.error?.code).toBe('out-of-memory');
  await page.goto(`/runs/${id}`);
  await expect(page.getByTestId('run-state')).toHaveText('failed');
  const error = page.getByRole('alert').filter({ hasText: 'out-of-memory' });
  await expect(error).toContainText(failed.error?.message as string);
  await expect(error).toContainText('raise memoryBudgetMiB');
  await error.getByRole('link', { name: 'Change and run again' }).click();
  await expect(page.getByRole('heading', { name: 'New run, from too-big' })).toBeVisible();
  await expect(page.getByTestId('budget-verdict')).toContainText('Over the budget');
  await box(page, 'memoryBudgetMiB').fill('');
  await page.getByRole('button', { name: 'Start run' }).click();
  await expect(page.getByTestId('run-state')).toHaveText('finished');
});

test('runs are ticked in the list and compared', async ({ page, api }) => {
  const made = [];
  for (const name of ['tick one', 'tick two'])
    made.push(await api.create(smallConfig(path, { name, strategy: name === 'tick one' ? 'ddp' : 'fsdp' })));
  for (const { id } of made) await api.until(id, 'finished');
  await page.goto('/runs');
  const compare = page.getByRole('link', { name: 'Compare', exact: true });
  await page.getByRole('checkbox', { name: 'Compare tick one' }).check();
  await expect(compare).toHaveCount(0);
  await page.getByRole('checkbox', { name: 'Compare tick two' }).check();
  await compare.click();
  await expect(page.getByRole('heading', { name: 'Comparison of 2 runs' })).toBeVisible();
  await expect(page.getByTestId('headline')).toContainText(
    'Their losses are equal to the last bit at the 4 steps that all have',
  );
  // Beside a shorter run, only the steps that all have are compared.
  const short = await api.create(smallConfig(path, { name: 'tick three', trainer: { steps: 2 } }));
  await api.until(short.id, 'finished');
  await page.goto(`/compare?ids=${[...made.map(({ id }) => id), short.id].join(',')}`);
  await expect(page.getByTestId('headline')).toContainText('equal to the last bit at the 2 steps that all have');
  const table = page.getByRole('table', { name: 'Comparison', exact: true });
  await expect(table.getByRole('columnheader', { name: 'Loss at step 1' })).toBeVisible();
  await expect(table.getByText(/ at step 3$/)).toHaveCount(2);
  // Their names are no difference that counts.
  const differing = page.getByRole('region', { name: 'Differing config fields', exact: true });
  const telling = differing.getByRole('table', { name: 'Differing config fields', exact: true });
  await expect(telling.getByRole('row', { name: /^strategy\.kind/ })).toBeVisible();
  await expect(telling.getByRole('row', { name: /^name/ })).toHaveCount(0);
  await differing.getByText(/more that decide none of these figures/).click();
  await expect(differing.getByRole('row', { name: /^name/ })).toContainText('tick three');
});

test('over its budget, a run is offered the strategies that fit, the quickest first', async ({ page }) => {
  await page.goto('/runs/new');
  await page.getByRole('button', { name: 'Will it fit?' }).click();
  const verdict = page.getByTestId('budget-verdict');
  await expect(verdict).toContainText('Over the budget');
  await expect(verdict.getByRole('listitem')).toHaveCount(3);
  const offers = await verdict.getByRole('listitem').allTextContents();
  expect(offers[0]).toContain('at the least time');
  expect(offers[0]).not.toContain('CPU offload');
  expect(offers[2]).toContain('CPU offload');
  // It would fail before its first step: it cannot be started so, and that it would fit this machine is not said.
  const start = page.getByRole('button', { name: 'Start run' });
  await expect(start).toBeDisabled();
  await expect(page.getByTestId('here-verdict')).toHaveCount(0);
  const over = await peak(page);
  await verdict.getByRole('button', { name: /^Use / }).first().click();
  await expect(verdict).toContainText('Fits the budget');
  await expect(start).toBeEnabled();
  expect(await peak(page)).toBeLessThan(over);
  await expect(field(page, 'strategy.kind').getByRole('radio', { name: 'FSDP' })).toBeChecked();
});

test('a prediction says for which adapter it is, and whether the run fits the machine that is here', async ({
  page,
}) => {
  // A machine with little memory, whatever this one has.
  await page.route('**/api/v1/devices', async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: { ...(await response.json()), freeHostBytes: 8 * 2 ** 30 } });
  });
  await page.goto('/runs/new');
  const [words, here] = [page.getByTestId('predicted-for'), page.getByTestId('here-verdict')];
  await expect(words).toContainText('which this run would take here');
  await expect(here).toContainText('Fits here.');
  await expect(here).toContainText('The 2 ranks together need');
  await page.getByRole('button', { name: 'Guide, 1 B (to plan)' }).click();
  await expect(words).toContainText('an NVIDIA H200, which this machine does not have');
  await expect(page.getByTestId('rates')).toContainText('measured on one H200');
  await expect(here).toContainText('It does not fit here', { timeout: 60_000 });
  await expect(here).toContainText('8.00 GiB are free');
  await here.getByRole('button', { name: 'Use size medium' }).click();
  await expect(box(page, 'model.ninp')).toHaveValue('512');
  await expect(page.getByRole('radio', { name: 'this machine' })).toBeChecked();
  await expect(here).toContainText('fits here', { ignoreCase: true, timeout: 60_000 });
});

test('rates that are built in say so, and are measured on request', async ({ page }) => {
  let state = { state: 'none', note: '' };
  await page.route('**/api/v1/devices', async (route) => {
    const response = await route.fetch();
    const body = await response.json();
    for (const adapter of body.adapters) Object.assign(adapter, { rates: null, calibration: state });
    await route.fulfill({ response, json: body });
  });
  await page.route('**/api/v1/devices/*/calibrate', async (route) => {
    state = { state: 'waiting', note: 'Its rates are not measured yet: other work takes 70 % of this machine.' };
    await route.fulfill({ status: 202, json: state });
  });
  await page.goto('/runs/new');
  const rates = page.getByTestId('rates');
  await expect(rates).toContainText('built-in rates, not measured here');
  await rates.getByRole('button', { name: 'Measure this adapter' }).click();
  await expect(rates).toContainText('other work takes 70 %');
  await expect(rates.getByRole('button')).toHaveCount(0);
});

test('the studio takes an adapter to be measured, and says where that stands', async ({ request }) => {
  const { adapters } = await (await request.get('/api/v1/devices')).json();
  const answer = await request.post(`/api/v1/devices/${encodeURIComponent(adapters[0].id)}/calibrate`);
  expect(answer.status()).toBe(202);
  expect((await answer.json()).state).toMatch(/waiting|measuring/);
  expect((await request.post('/api/v1/devices/none/calibrate')).status()).toBe(404);
});

test('over a slow link, hybrid sharding stands beside FULL_SHARD', async ({ page }) => {
  await page.goto('/runs/new');
  await expect(page.getByTestId('predicted-peak')).toBeVisible();
  await field(page, 'devices').getByRole('radio', { name: '4' }).check();
  await field(page, 'strategy.shardingStrategy').getByRole('radio', { name: 'HYBRID_SHARD', exact: true }).check();
  await expect(page.getByTestId('over-link')).toHaveCount(0);
  await box(page, 'strategy.linkGBps').fill('0.0001');
  const figure = page.getByTestId('over-link');
  await expect(figure).toContainText('A step over 0.0001 GB/s between rows', { timeout: 60_000 });
  await expect(figure.getByRole('listitem')).toHaveText([/HYBRID_SHARD.*cross it/, /FULL_SHARD.*cross it/]);
  await expect(figure).toContainText(/Hybrid sharding is [1-9]\.\d× as fast here/);
});

test('a text of one’s own is uploaded and trained on', async ({ page, api }) => {
  await page.goto('/runs/new');
  await box(page, 'name').fill('own text');
  await field(page, 'adapter').getByRole('combobox').selectOption('interpreter');
  await field(page, 'data.kind').getByRole('radio', { name: 'Text file' }).check();
  const name = 'own words.txt';
  await field(page, 'data.path')
    .getByLabel('Upload: ', { exact: false })
    .setInputFiles({ name, mimeType: 'text/plain', buffer: Buffer.from(`${SMALL_TEXT}\nand one more word .`) });
  await expect(page.getByText(`${name} is in the data folder`)).toBeVisible();
  await box(page, 'data.blockSize').fill('8');
  await box(page, 'trainer.steps').fill('3');
  await expect(page.getByText(/a vocabulary of 1\d,/)).toBeVisible();
  await page.getByRole('button', { name: 'Start run' }).click();
  await expect(page.getByTestId('run-state')).toHaveText('finished', { timeout: 60_000 });
  const [run] = (await api.runs()).filter((one) => one.name === 'own text');
  expect(run.stepsDone).toBe(3);
});

/** Drops a file on a control, as a person drags it in from elsewhere. */
async function drop(page: Page, at: string, name: string, text: string): Promise<void> {
  const dataTransfer = await page.evaluateHandle(
    ([fileName, content]) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([content], fileName));
      return transfer;
    },
    [name, text],
  );
  const target = field(page, at).getByRole('group', { name: 'or a file dropped here' });
  for (const event of ['dragenter', 'dragover', 'drop']) await target.dispatchEvent(event, { dataTransfer });
}

test('a file dropped on its field is uploaded and used; one that is none is named', async ({ page, refusals }) => {
  refusals.push(/\/files\?/);
  await page.goto('/runs/new');
  await page.getByRole('radio', { name: 'YAML' }).check();
  await page
    .getByRole('textbox', { name: 'Config as YAML' })
    .fill(JSON.stringify(smallConfig(path, { name: 'dropped', trainer: { steps: 2 } })));
  await page.getByRole('radio', { name: 'Form' }).check();
  await drop(page, 'init.from', 'my weights.safetensors', 'hello');
  await expect(field(page, 'init.from').getByRole('status')).toContainText('"my weights.safetensors"');
  await drop(page, 'data.path', 'dropped words.txt', SMALL_TEXT);
  await expect(field(page, 'data.path').getByRole('status')).toContainText('dropped words.txt is in the data folder');
  await expect(field(page, 'data.path').getByRole('combobox')).toHaveValue('uploads/dropped-words.txt');
  await page.getByRole('button', { name: 'Start run' }).click();
  await expect(page.getByTestId('run-state')).toHaveText('finished', { timeout: 60_000 });
});

test('sizes fill in the model, and what does not fit the data or float16 is said there', async ({ page }) => {
  await page.goto('/runs/new');
  await field(page, 'model.kind').getByRole('radio', { name: 'GPT-2' }).check();
  const sizes = page.getByRole('group', { name: 'Sizes of this model' });
  await sizes.getByRole('button', { name: /^small 124 M/ }).click();
  await expect(sizes.getByRole('button', { name: /^small/ })).toHaveAttribute('aria-pressed', 'true');
  await expect(box(page, 'model.nLayer')).toHaveValue('12');
  await expect(page.getByTitle('124,439,808', { exact: true })).toBeVisible();
  await box(page, 'model.vocabSize').fill('50000');
  await expect(field(page, 'model.vocabSize')).toContainText("50000 is fewer than GPT-2's 50257 tokens");
  await box(page, 'model.vocabSize').fill('50257');
  await box(page, 'trainer.accumulateGradBatches').fill('4000');
  await expect(field(page, 'model.nLayer')).toContainText('more than the 2048 that a step can be planned for');
  await box(page, 'trainer.accumulateGradBatches').fill('1');
  await field(page, 'precision').getByRole('radio', { name: '16-true' }).check();
  await expect(field(page, 'optimizer.eps')).toContainText('Set optimizer.eps 0.0001');
  await expect(page.getByRole('button', { name: 'Start run' })).toBeEnabled();
});
