import { AxeBuilder } from '@axe-core/playwright';
import { type APIRequestContext, test as base, expect, type Page } from '@playwright/test';
import { Comparison, Run, RunList, type RunSummary, UploadedFile } from '../server/contract.ts';

/** What the specs share: a page that may say nothing to its console, and the interface as a program asks it. */
export const test = base.extend<{ api: StudioApi; refusals: RegExp[]; quietConsole: undefined }>({
  api: async ({ request }, use) => use(new StudioApi(request)),
  /** Addresses that a test means to be refused. */
  // biome-ignore lint/correctness/noEmptyPattern: Playwright reads what a fixture needs from this pattern.
  refusals: async ({}, use) => use([]),
  quietConsole: [
    async ({ page, refusals }, use) => {
      const said: { text: string; url: string }[] = [];
      page.on('console', (message) => {
        if (message.type() === 'error') said.push({ text: message.text(), url: message.location().url });
      });
      page.on('pageerror', (error) => said.push({ text: String(error.stack ?? error), url: '' }));
      await use(undefined);
      const meant = ({ text, url }: { text: string; url: string }) =>
        /^Failed to load resource: .* 4\d\d /.test(text) && refusals.some((address) => address.test(url));
      expect(
        said.filter((one) => !meant(one)),
        'errors in the console',
      ).toEqual([]);
    },
    { auto: true },
  ],
});
export { expect };

/** Long enough for a run of a few steps on two busy cores. */
const RUN_MS = 60_000;

export class StudioApi {
  constructor(private readonly request: APIRequestContext) {}

  async run(id: string): Promise<Run> {
    return Run.parse(await this.json(`/runs/${id}`));
  }

  async runs(): Promise<RunSummary[]> {
    return RunList.parse(await this.json('/runs')).runs;
  }

  async compare(ids: readonly string[]): Promise<Comparison> {
    return Comparison.parse(await this.json(`/compare?ids=${ids.join(',')}`));
  }

  async create(config: unknown): Promise<Run> {
    const answer = await this.request.post('/api/v1/runs', { data: { config } });
    expect(answer.status(), await answer.text()).toBe(201);
    return Run.parse(await answer.json());
  }

  async upload(kind: 'text' | 'batches' | 'weights', name: string, data: string | Buffer): Promise<string> {
    const answer = await this.request.post(`/api/v1/files?kind=${kind}&name=${name}`, {
      data,
      headers: { 'content-type': 'application/octet-stream' },
    });
    expect(answer.status(), await answer.text()).toBe(201);
    return UploadedFile.parse(await answer.json()).path;
  }

  async until(id: string, state: Run['state'], withinMs = RUN_MS): Promise<Run> {
    await expect.poll(async () => (await this.run(id)).state, { timeout: withinMs, intervals: [200] }).toBe(state);
    return this.run(id);
  }

  /** Leaves the studio as a person finds it first. */
  async deleteAllRuns(): Promise<void> {
    for (const { id, state } of await this.runs()) {
      if (!['finished', 'failed', 'stopped'].includes(state)) {
        await this.request.post(`/api/v1/runs/${id}/stop`);
        await expect
          .poll(async () => (await this.run(id)).state, { timeout: RUN_MS })
          .toMatch(/finished|failed|stopped/);
      }
      expect((await this.request.delete(`/api/v1/runs/${id}`)).status()).toBe(204);
    }
  }

  private async json(path: string): Promise<unknown> {
    const answer = await this.request.get(`/api/v1${path}`);
    expect(answer.status(), path).toBe(200);
    return answer.json();
  }
}

/** A text of few words, so that a model of it is small. */
export const SMALL_TEXT = Array.from(
  { length: 60 },
  (_, i) =>
    `the ${['whale', 'sea', 'ship', 'captain'][i % 4]} saw the ${['storm', 'moon', 'shore'][i % 3]} , and slept .`,
).join('\n');

/** A config that finishes in seconds on the interpreter; `path` is SMALL_TEXT's. */
export function smallConfig(path: string, more: Record<string, unknown> = {}) {
  return {
    name: 'small',
    adapter: 'interpreter',
    model: { kind: 'demo-transformer', ninp: 16, nhead: 2, nhid: 32, nlayers: 1 },
    data: { kind: 'wikitext2', path, blockSize: 8 },
    trainer: { steps: 4 },
    ...more,
  };
}

/** The same, so long that a person can stop it. */
export function longConfig(path: string, name = 'long') {
  return smallConfig(path, {
    name,
    model: { kind: 'demo-transformer', ninp: 64, nhead: 2, nhid: 128, nlayers: 2 },
    data: { kind: 'wikitext2', path, blockSize: 32, batchSize: 2 },
    trainer: { steps: 100_000 },
  });
}

/** Everything serious or critical that axe finds, as readable lines. */
export async function axeFindings(page: Page): Promise<string[]> {
  const { violations } = await new AxeBuilder({ page }).analyze();
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) => nodes.map(({ target, failureSummary }) => `${id} at ${target}: ${failureSummary}`));
}

/** What one cannot reach at this width without scrolling sideways: what sticks out, outside of a part that scrolls itself. */
export function stickingOut(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const width = document.documentElement.clientWidth;
    const scrolls = (element: Element): boolean => {
      for (let at = element.parentElement; at && at !== document.body; at = at.parentElement)
        if (/auto|scroll/.test(getComputedStyle(at).overflowX)) return true;
      return false;
    };
    const found =
      document.documentElement.scrollWidth > width ? [`the page is ${document.documentElement.scrollWidth} wide`] : [];
    for (const element of document.querySelectorAll('a, button, input, select, textarea, h1, h2, p, td, th')) {
      const { left, right, height } = element.getBoundingClientRect();
      if (height <= 1 || element.closest('.sr-only') || (left >= 0 && right <= width + 0.5) || scrolls(element))
        continue;
      found.push(`${element.tagName} "${element.textContent?.trim().slice(0, 40)}" from ${left} to ${right}`);
    }
    return found;
  });
}
