import { z } from 'zod';
import { AdapterRates } from '../engine/schedule/rates.ts';
import {
  byCategory,
  CheckpointRecord,
  RunError,
  RunEvent,
  StartEvent,
  StepEvent,
  wireNumber,
} from '../engine/trainer/events.ts';
import { RankTrace } from '../engine/trainer/rank-trace.ts';

/** What /api/v1 and the socket say, as the pages and the tests read it. Times are ISO 8601 in UTC. */

export const RunState = z.enum(['queued', 'starting', 'running', 'stopping', 'finished', 'failed', 'stopped']);
export type RunState = z.infer<typeof RunState>;

/** Body of POST /api/v1/runs: the config as a person writes it (defaults left out). 201 with the Run. */
export const CreateRun = z.strictObject({
  config: z.unknown().refine((config) => config !== null, 'is null; send {} for the defaults'),
  group: z.string().max(100).nullable().default(null),
});

export const RunSummary = z.strictObject({
  id: z.string(),
  name: z.string(),
  state: RunState,
  /** Why it is in this state, in a sentence ("queued: waits for llvmpipe, used by run x"). */
  reason: z.string(),
  createdAt: z.string(),
  startedAt: z.string().nullable(),
  endedAt: z.string().nullable(),
  /** Runs queued together (the quick-start) share a group. */
  group: z.string().nullable(),
  strategy: z.string(),
  devices: z.number(),
  adapter: z.string(),
  steps: z.number(),
  stepsDone: z.number(),
  lastSeq: z.number(),
  /** Of the last step: mean loss; of all steps but the first: median iteration time; most reserved bytes of any rank. */
  lossMean: wireNumber.nullable(),
  iterationMs: z.number().nullable(),
  peakBytes: z.number().nullable(),
});
export type RunSummary = z.infer<typeof RunSummary>;

/** As a run's first event says it. */
export const Prediction = StartEvent.shape.predicted;

export const Run = z.strictObject({
  ...RunSummary.shape,
  config: z.unknown(),
  /** The run whose checkpoint this one goes on from or starts with, by its path, if it is one of the studio. */
  parent: z.string().nullable(),
  error: RunError.nullable(),
  adapters: z.array(z.strictObject({ name: z.string(), pciId: z.string().nullable(), software: z.boolean() })),
  params: z.number().nullable(),
  predicted: Prediction.nullable(),
  checkpoints: z.array(z.strictObject({ ...CheckpointRecord.shape, name: z.string(), bytes: z.number() })),
});
export type Run = z.infer<typeof Run>;

/** GET /api/v1/runs → newest first. */
export const RunList = z.strictObject({ runs: z.array(RunSummary), total: z.number() });

/** GET /api/v1/runs/:id/events?after=SEQ&limit=N. Events carry `seq` from 1 without holes. */
export const EventPage = z.strictObject({
  events: z.array(z.intersection(z.object({ seq: z.number() }), RunEvent)),
  lastSeq: z.number(),
});

/** GET /api/v1/compare?ids=a,b → the table of the FSDP guides. */
export const Comparison = z.strictObject({
  runs: z.array(
    z.strictObject({
      run: RunSummary,
      config: z.unknown(),
      /** Most reserved bytes of the fullest rank, and the most live with its split. */
      peakBytes: z.number().nullable(),
      liveBytes: z.number().nullable(),
      byCategory: byCategory.nullable(),
      /** Median over `timedSteps`. */
      iterationMs: z.number().nullable(),
      /** The quickest and the slowest of the steps that the median is over, and how many these are. */
      iterationSpread: z.strictObject({ minMs: z.number(), maxMs: z.number(), steps: z.int().min(1) }).nullable(),
      lossMeans: z.array(wireNumber),
      /**
       * `lossMeans[i]` is of step lossFrom + i × lossStride: of every step, from the first that the run took, unless it has
       * more than 5000.
       */
      lossStride: z.int().min(1),
      lossFrom: z.int().min(0),
    }),
  ),
  /**
   * The steps over which all iteration times are taken: those that every run has which has any, its first apart. Null when
   * there are none: then each is over its own.
   */
  timedSteps: z.strictObject({ first: z.number(), last: z.number(), count: z.number() }).nullable(),
  /** Dotted paths of config fields that differ between these runs, name left out. */
  differing: z.array(z.string()),
});
export type Comparison = z.infer<typeof Comparison>;

/** GET /api/v1/devices. POST /api/v1/devices/:id/calibrate → 202: it is measured once nothing runs and the machine is quiet. */
export const DeviceList = z.strictObject({
  adapters: z.array(
    z.strictObject({
      id: z.string(),
      name: z.string(),
      pciId: z.string().nullable(),
      software: z.boolean(),
      /** Whether products of halves run on tensor cores, where they are found to compute right. */
      tensorCores: z.boolean(),
      features: z.array(z.string()),
      limits: z.record(z.string(), z.number()),
      busy: z.string().nullable(),
      /** Memory of its own; null for a software adapter, whose buffers are host memory. */
      memoryBytes: z.number().nullable(),
      /** Rates that were measured on it, for the time estimate. */
      rates: AdapterRates.nullable(),
      /** Whether measuring them is under way, and a sentence for a person: what it waits for, or why it failed. */
      calibration: z.strictObject({ state: z.enum(['none', 'waiting', 'measuring', 'failed']), note: z.string() }),
    }),
  ),
  /** What all ranks of a run together may take of the host's memory just now. */
  freeHostBytes: z.number(),
  error: z.string().nullable(),
});

/** GET /api/v1/corpora?kind=moby-dick or ?kind=wikitext2&path=uploads/x.txt, &blockSize=35, &tokenizer=word or gpt2. */
export const CorpusInfo = z.strictObject({
  kind: z.string(),
  path: z.string().nullable(),
  vocabSize: z.number(),
  tokens: z.number(),
  samples: z.number(),
});
export type CorpusInfo = z.infer<typeof CorpusInfo>;

const counts = z.array(z.number());

/*
 * A checkpoint is one of a run, at runs/:id/checkpoints/:name, or one that was brought, at checkpoints/:name. Below either
 * address is the same; CHECKPOINT stands for both.
 */
export const CheckpointKind = z.enum(['full', 'sharded', 'safetensors']);
export type CheckpointKind = z.infer<typeof CheckpointKind>;

/** A checkpoint that was brought, or made of another here; what cannot be opened has a problem and no more. */
export const BroughtCheckpoint = z.strictObject({
  name: z.string(),
  /** Where a config points. */
  path: z.string(),
  bytes: z.number(),
  broughtAt: z.string(),
  /** When all of it was read and its digest taken; null for what was never looked through. */
  verifiedAt: z.string().nullable(),
  holds: z
    .strictObject({
      kind: CheckpointKind,
      params: z.number(),
      tensors: z.number(),
      /** Steps done, where it says so. */
      step: z.number().nullable(),
      optimizer: z.boolean(),
    })
    .nullable(),
  problem: z.string().nullable(),
});
export type BroughtCheckpoint = z.infer<typeof BroughtCheckpoint>;

/** GET /api/v1/checkpoints → those that were brought, newest first. DELETE checkpoints/:name → 204. */
export const BroughtCheckpointList = z.strictObject({ checkpoints: z.array(BroughtCheckpoint) });
export type BroughtCheckpointList = z.infer<typeof BroughtCheckpointList>;

const LineError = z.strictObject({ code: z.string(), message: z.string() });
export const ProgressLine = z.strictObject({
  type: z.literal('progress'),
  doneBytes: z.number(),
  ofBytes: z.number(),
});
/** A file that was looked at, and what is wrong with it. */
export const FileLine = z.strictObject({ type: z.literal('file'), name: z.string(), problem: LineError.nullable() });
export const FailedLine = z.strictObject({ type: z.literal('failed'), error: LineError });
/** `digests`: each file was what its sha256 says; without any, what its format has to check fits. */
export const VerifiedLine = z.strictObject({
  type: z.literal('verified'),
  kind: CheckpointKind,
  digests: z.boolean(),
});

/** POST CHECKPOINT/verify → one line of JSON after another while all of it is read; the last is `verified` or `failed`. */
export const VerifyLine = z.discriminatedUnion('type', [ProgressLine, FileLine, VerifiedLine, FailedLine]);
export type VerifyLine = z.infer<typeof VerifyLine>;

/** Body of POST CHECKPOINT/convert: the form, for a folder in the files of how many ranks, and a name of one's own. */
export const ConvertBody = z.strictObject({
  kind: CheckpointKind,
  ranks: z.int().min(1).max(1024).nullable().default(null),
  name: z.string().min(1).max(100).nullable().default(null),
});
export type ConvertBody = z.input<typeof ConvertBody>;

/** Its answer, line by line; at the end the new checkpoint, with the keys that its form has no room for. */
export const ConvertLine = z.discriminatedUnion('type', [
  ProgressLine,
  z.strictObject({ type: z.literal('converted'), checkpoint: BroughtCheckpoint, dropped: z.array(z.string()) }),
  FailedLine,
]);
export type ConvertLine = z.infer<typeof ConvertLine>;

/** GET CHECKPOINT/details → what it holds; no tensor is read for it. */
export const CheckpointDetails = z.object({
  kind: CheckpointKind,
  step: z.number().nullable(),
  /** Null where no digest is beside it. */
  sha256: z.string().nullable(),
  bytes: z.number(),
  files: z.array(z.object({ name: z.string(), bytes: z.number(), sha256: z.string().nullable() })).readonly(),
  params: z.number(),
  /** Of all; of very many, `tensors` lists the first. */
  tensorCount: z.number(),
  tensors: z
    .array(
      z.object({
        name: z.string(),
        dtype: z.string(),
        shape: counts.readonly(),
        elements: z.number(),
        bytes: z.number(),
        /** Boxes of it, by the rank that wrote each; one box of everything in a file. */
        parts: z
          .array(
            z.object({
              file: z.string(),
              rank: z.number().nullable(),
              offsets: counts.readonly(),
              sizes: counts.readonly(),
            }),
          )
          .readonly(),
      }),
    )
    .readonly(),
  optimizers: z
    .array(
      z.object({
        key: z.string(),
        parameters: z.number(),
        groups: z.array(z.object({ parameters: z.number(), options: z.unknown() })).readonly(),
      }),
    )
    .readonly(),
  iter: z.number().nullable(),
  samples: z.number().nullable(),
  config: z.unknown(),
});
export type CheckpointDetails = z.infer<typeof CheckpointDetails>;

/** GET CHECKPOINT/tensor?tensor=NAME → its elements, read for it. */
export const TensorDetails = z.object({
  elements: z.number(),
  nan: z.number(),
  positiveInfinity: z.number(),
  negativeInfinity: z.number(),
  min: z.number().nullable(),
  max: z.number().nullable(),
  mean: z.number().nullable(),
  histogram: counts.readonly(),
});
export type TensorDetails = z.infer<typeof TensorDetails>;

/**
 * Body of POST CHECKPOINT/sample: what to continue, a text or token ids. The answer is one
 * SampleLine after another, each a line of JSON; it ends when the reader goes away. What is wrong with the body, the
 * prompt or the checkpoint is an error as everywhere.
 */
export const SampleBody = z.strictObject({
  prompt: z.string().max(20_000).nullable().default(null),
  tokens: z.array(z.int().min(0)).max(65_536).nullable().default(null),
  count: z.int().min(1).max(1000).default(20),
  /** 0 takes the likeliest token each time. */
  temperature: z.number().min(0).max(100).default(0),
  topK: z.int().min(1).nullable().default(null),
  seed: z.int().min(0).max(0xffffffff).default(0),
  /** `interpreter` needs no GPU; or an adapter as the config names it. */
  adapter: z.string().min(1).max(200).default('interpreter'),
});
export type SampleBody = z.infer<typeof SampleBody>;

/** Text that follows, as it is drawn: the prompt first, then what each token adds, at last how it ended. */
export const SampleLine = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('prompt'), tokens: counts, text: z.string() }),
  z.strictObject({ type: z.literal('token'), token: z.number(), text: z.string() }),
  z.strictObject({
    type: z.literal('end'),
    text: z.string(),
    error: z.strictObject({ code: z.string(), message: z.string() }).nullable(),
  }),
]);
export type SampleLine = z.infer<typeof SampleLine>;

/** POST /api/v1/files?kind=text|batches|weights|checkpoint&name=… with the bytes as the body → where a config can point. */
export const UploadedFile = z.strictObject({ path: z.string(), bytes: z.number(), sha256: z.string() });

/** GET /api/v1/files → what was uploaded, by name. */
export const FileList = z.strictObject({ files: z.array(z.strictObject({ path: z.string(), bytes: z.number() })) });
export type FileList = z.infer<typeof FileList>;

/** POST /api/v1/quick-start → DDP and FULL_SHARD on the default corpus with two ranks, both queued. */
export const QuickStart = z.strictObject({ group: z.string(), runs: z.array(RunSummary) });
export type QuickStart = z.infer<typeof QuickStart>;

/** GET /api/v1/runs/:id/memory-summary → one memorySummary() table per rank, once the run has ended. */
export const MemorySummary = z.strictObject({
  summaries: z.array(z.strictObject({ rank: z.number(), text: z.string() })),
});
export type MemorySummary = z.infer<typeof MemorySummary>;

/** GET /api/v1/runs/:id/traces → the steps of training that were traced, the newest last. */
export const TraceList = z.strictObject({ steps: z.array(z.int()) });
export type TraceList = z.infer<typeof TraceList>;

/** GET /api/v1/runs/:id/traces/:step → what each rank took down; `?as=chrome`: a download for ui.perfetto.dev. */
export const Trace = z.strictObject({ ranks: z.array(RankTrace) });
export type Trace = z.infer<typeof Trace>;

/*
 * Beside these: GET /api/v1/health; GET runs/:id/config (the whole config, to clone); POST runs/:id/stop, runs/:id/save and runs/:id/trace → 202
 * with the Run; DELETE runs/:id → 204; GET runs/:id/checkpoints and CHECKPOINT (a download with ETag and Range; a folder as one tar;
 * `?as=full` or `?as=safetensors` makes that form of it as it is sent);
 * GET runs/:id/steps.csv.
 */

/** Every error body. `problems` are fields of the config, by dotted path. */
export const ErrorBody = z.strictObject({
  error: z.strictObject({
    code: z.string(),
    message: z.string(),
    problems: z.array(z.strictObject({ path: z.string(), message: z.string(), code: z.string() })).optional(),
  }),
});

/** Socket: the client emits `follow` with a run id (or "runs" for the list); the server emits this hint, volatile. */
export const Hint = z.strictObject({ runId: z.string(), lastSeq: z.number() });
export type Hint = z.infer<typeof Hint>;

export { StepEvent };
