import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ErrorBody, Trace, TraceList } from '../contract.ts';
import { openTestStudio, type TestStudio } from '../fixtures/test-studio.ts';

let test: TestStudio;

beforeAll(async () => {
  // The real worker: what it writes is what is served.
  test = await openTestStudio({ workers: {} });
});
afterAll(() => test.close());

const tiny = {
  adapter: 'interpreter',
  devices: 2,
  model: { kind: 'demo-transformer', vocabSize: 50, ninp: 8, nhead: 2, nhid: 8, nlayers: 1 },
  data: { kind: 'moby-dick', blockSize: 4, batchSize: 1 },
  checkpoint: { atEnd: false },
};

describe('a run that trains', { timeout: 60_000 }, () => {
  it('is asked for a trace of a step, of all ranks, to draw and to download', async () => {
    const vocabSize = ((await test.api.get('/corpora?kind=moby-dick&blockSize=4')).body as { vocabSize: number })
      .vocabSize;
    const model = { ...tiny.model, vocabSize };
    const { id } = await test.api.create({ ...tiny, model, trainer: { steps: 100_000 } });
    expect(TraceList.parse((await test.api.get(`/runs/${id}/traces`)).body).steps).toEqual([]);
    await test.api.until(id, 'running');
    expect((await test.api.post(`/runs/${id}/trace`)).status).toBe(202);
    let steps: readonly number[] = [];
    for (const deadline = performance.now() + 30_000; steps.length === 0 && performance.now() < deadline; )
      steps = TraceList.parse((await test.api.get(`/runs/${id}/traces`)).body).steps;
    expect(steps).toHaveLength(1);
    const [step] = steps;
    const { ranks } = Trace.parse((await test.api.get(`/runs/${id}/traces/${step}`)).body);
    expect(ranks.map((rank) => [rank.rank, rank.world, rank.step])).toEqual([
      [0, 2, step],
      [1, 2, step],
    ]);
    const chrome = await test.api.get(`/runs/${id}/traces/${step}?as=chrome`);
    expect(chrome.headers.get('content-disposition')).toBe(`attachment; filename="${id}-step-${step}-trace.json"`);
    expect(chrome.body).toMatchObject({ otherData: { step, ranks: 2 } });
    await test.api.post(`/runs/${id}/stop`);
    await test.api.until(id, 'stopped');

    // Once it is over there is no step to come; what was traced stays until the run is deleted.
    const late = await test.api.post(`/runs/${id}/trace`);
    expect([late.status, ErrorBody.parse(late.body).error.message]).toEqual([409, expect.stringContaining('stopped')]);
    expect(TraceList.parse((await test.api.get(`/runs/${id}/traces`)).body).steps).toEqual([step]);
    for (const [path, status] of [
      [`/runs/${id}/traces/999999`, 404],
      [`/runs/${id}/traces/..%2f..%2fstudio`, 404],
      [`/runs/${id}/traces/${step}?as=zip`, 400],
      ['/runs/none/traces', 404],
    ] as const)
      expect((await test.api.get(path)).status, path).toBe(status);
  });
});
