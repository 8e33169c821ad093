import { beforeAll, describe, expect, it } from 'vitest';
import { openInProcessMailboxes } from '../comm/in-process.ts';
import { parseConfig } from '../config.ts';
import { Interpreter } from '../interpret/interpreter.ts';
import { buildModel } from '../model/build-model.ts';
import { compileRun } from '../schedule/compile.ts';
import { compileRanks, smallModel } from '../schedule/fixtures/small-runs.ts';
import { type Prediction, predictionOf } from '../schedule/plan.ts';
import { builtInProfiles } from '../schedule/profile.ts';
import type { Schedule } from '../schedule/schedule.ts';
import { type ChromeEvent, chromeTrace, LANES, slicesOf } from './chrome-trace.ts';
import { RankTrace, rankTraceOf } from './rank-trace.ts';
import { fillRank, freshParameters } from './state.ts';

/** A step of two ranks in the interpreter, which runs a schedule in listed order. */
let traces: RankTrace[];
let schedule: Schedule;
let prediction: Prediction;
beforeAll(async () => {
  const config = parseConfig({ model: smallModel, devices: 2, strategy: 'fsdp' });
  const model = buildModel(config.model, null);
  const profile = builtInProfiles.interpreter;
  const shapes = [{ batch: 2, tokens: 5 }];
  const runs = [0, 1].map((rank) => compileRun({ config, model, shapes, rank, profile }));
  schedule = runs[0].steps[0].schedule;
  prediction = predictionOf(runs[0], profile);
  const mailboxes = openInProcessMailboxes(2, runs[0].regions, { timeoutMs: 10_000 });
  const tokens = Uint32Array.from({ length: 10 }, (_, i) => i % smallModel.vocabSize);
  traces = await Promise.all(
    runs.map(async (run, rank) => {
      const engine = new Interpreter(run, mailboxes[rank]);
      await fillRank(engine, run, freshParameters(1));
      const trace = await engine.trace();
      const batch = { inputs: [tokens], targets: [tokens] };
      await engine.start({ step: 7, shapeIndex: 0, ...batch, lrFactor: 1, stopRequested: () => false, trace }).outcome;
      return rankTraceOf(run.steps[0].schedule, await trace.finish(run.steps[0].schedule), 7, 1000);
    }),
  );
});

const ofRank = (events: readonly ChromeEvent[], rank: number) => events.filter(({ pid }) => pid === rank);

describe('the trace of a rank', () => {
  it('has every step of the schedule once, with what the plan says is live at it', () => {
    for (const [rank, trace] of traces.entries()) {
      expect(trace).toMatchObject({ rank, world: 2, step: 7, computeClock: { kind: 'host' } });
      expect(trace.steps.map(({ label, lane }) => [label, lane])).toEqual(schedule.steps.map((s) => [s.label, s.lane]));
      expect(trace.steps.map(({ liveBytes }) => liveBytes)).toEqual(prediction.timeline.map((t) => t.liveBytes));
      expect(RankTrace.parse(JSON.parse(JSON.stringify(trace)))).toEqual(trace);
    }
  });

  it('shows live bytes as they were: in listed order they are those of the plan', () => {
    for (const { steps, live } of traces)
      for (const [id, { startMs }] of steps.entries()) {
        // Where the next step begins in the same nanosecond, what this one had is not to be seen.
        if (steps[id + 1]?.startMs === startMs || steps[id].endMs === startMs) continue;
        const at = live.findLast(({ atMs }) => atMs <= startMs);
        expect(at?.byCategory, steps[id].label).toEqual(prediction.timeline[id].byCategory);
      }
    const most = Math.max(...traces[0].live.map(({ byCategory }) => byCategory.reduce((a, b) => a + b)));
    expect(most).toBe(prediction.liveBytes);
  });

  it('names what was waited for: the peers', () => {
    expect(traces[1].waits.map((wait) => wait.for)).toContain('rank 0');
  });
});

describe('the Chrome trace', () => {
  it('is JSON with a process for each rank, each step of its schedule once, and its lanes as threads', () => {
    const { traceEvents } = JSON.parse(JSON.stringify(chromeTrace(traces))) as ReturnType<typeof chromeTrace>;
    for (const rank of [0, 1]) {
      const events = ofRank(traceEvents, rank);
      expect(events.find(({ name }) => name === 'process_name')?.args).toEqual({ name: `rank ${rank}` });
      const steps = events.filter(({ ph, cat }) => ph === 'X' && cat !== 'wait');
      expect(steps.map(({ args }) => args.step).sort((a, b) => Number(a) - Number(b))).toEqual(
        schedule.steps.map(({ id }) => id),
      );
      const named = new Map(events.flatMap((e) => (e.name === 'thread_name' ? [[e.tid, String(e.args.name)]] : [])));
      for (const { tid, args } of steps)
        expect(named.get(tid)?.startsWith(schedule.steps[Number(args.step)].lane), named.get(tid)).toBe(true);
      for (const name of ['live bytes', 'live bytes by category'])
        expect(events.filter((e) => e.ph === 'C' && e.name === name)).toHaveLength(traces[rank].live.length);
    }
    expect(Math.min(...traceEvents.flatMap(({ ts }) => (ts === undefined ? [] : [ts])))).toBe(0);
  });

  it('overlaps nothing in a row but a wait with the step that it is inside of', () => {
    for (const trace of traces)
      for (const lane of LANES) {
        const slices = slicesOf(trace, lane);
        for (const row of new Set(slices.map((slice) => slice.row))) {
          let freeAtMs = 0;
          const insideFreeAtMs = new Map<number, number>();
          const inRow = slices.filter((slice) => slice.row === row);
          for (const slice of inRow.sort((a, b) => a.startMs - b.startMs || b.endMs - a.endMs)) {
            const step = trace.steps[slice.step];
            const inside = slice.kind === 'wait' && slice.startMs >= step.startMs && slice.endMs <= step.endMs;
            if (inside) {
              expect(slice.startMs).toBeGreaterThanOrEqual(insideFreeAtMs.get(slice.step) ?? 0);
              insideFreeAtMs.set(slice.step, slice.endMs);
              continue;
            }
            expect(slice.startMs).toBeGreaterThanOrEqual(freeAtMs);
            freeAtMs = slice.endMs;
          }
        }
      }
  });

  it('shows steps of one lane that were under way together one below the other', () => {
    const at = (label: string, startMs: number, endMs: number) => ({
      ...traces[0].steps[0],
      label,
      lane: 'host' as const,
      startMs,
      endMs,
    });
    const overlapping = {
      ...traces[0],
      steps: [at('publish a', 0, 5), at('publish b', 1, 3), at('publish c', 5, 6)],
      waits: [{ step: 2, for: 'rank 1', startMs: 3, endMs: 4 }],
    };
    expect(slicesOf(overlapping, 'host').map(({ kind, step, row }) => [kind, step, row])).toEqual([
      ['step', 0, 0],
      ['step', 1, 1],
      ['wait', 2, 1],
      ['step', 2, 0],
    ]);
    const rows = chromeTrace([overlapping]).traceEvents.flatMap((e) => (e.name === 'thread_name' ? [e.args.name] : []));
    expect(rows.slice(-2)).toEqual(['host', 'host 2']);
  });

  it('shows waits of one step for several peers as waits for one after the other', () => {
    const step = { ...traces[0].steps[0], lane: 'comm' as const, startMs: 0, endMs: 9 };
    const waits = [
      { step: 0, for: 'rank 1', startMs: 1, endMs: 8 },
      { step: 0, for: 'rank 2', startMs: 1, endMs: 5 },
      { step: 0, for: 'rank 3', startMs: 2, endMs: 5 },
    ];
    const slices = slicesOf({ ...traces[0], steps: [step], waits }, 'comm').filter(({ kind }) => kind === 'wait');
    expect(slices.map((slice) => [slice.for, slice.startMs, slice.endMs])).toEqual([
      ['rank 2', 1, 5],
      ['rank 3', 5, 5],
      ['rank 1', 5, 8],
    ]);
  });

  it('puts the ranks on one clock', () => {
    const later = { ...traces[1], rank: 1, startMs: traces[0].startMs + 3 };
    const { traceEvents } = chromeTrace([traces[0], later]);
    const first = Math.min(...ofRank(traceEvents, 1).flatMap(({ ts }) => (ts === undefined ? [] : [ts])));
    expect(first).toBeCloseTo(3000, 6);
  });
});

describe('a run over a simulated link', () => {
  const traceWith = (linkGBps: number | null) => {
    const strategy = { kind: 'fsdp', shardingStrategy: 'HYBRID_SHARD', deviceMesh: [2, 2], linkGBps };
    const [{ steps }] = compileRanks({ config: { devices: 4, strategy } });
    const { schedule: own } = steps[0];
    const spans = own.steps.map(({ id }) => ({ startMs: id, endMs: id + 1 }));
    return rankTraceOf(own, { clock: { kind: 'host' }, spans, waits: [] }, 3, 0);
  };
  const laneNames = (trace: RankTrace) =>
    chromeTrace([trace]).traceEvents.flatMap((e) => (e.name === 'thread_name' ? [String(e.args.name)] : []));

  it('says so in its trace, beside the lane that waits for it', () => {
    const trace = traceWith(5);
    expect(RankTrace.parse(trace).simulatedLinkGBps).toBe(5);
    expect(chromeTrace([trace]).otherData).toMatchObject({ simulatedLinkGBps: 5 });
    expect(laneNames(trace).filter((name) => name.includes('simulated link, 5 GB/s'))).toEqual([
      'comm (simulated link, 5 GB/s)',
    ]);
    expect(JSON.stringify(chromeTrace([traceWith(null)]))).not.toContain('imulated');
  });
});
