import { readdir, readFile, stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { compareNames } from '../checkpoint/compare-names.ts';
import { configOf, readParameter, type StoredCheckpoint } from '../checkpoint/stored-checkpoint.ts';
import { checkConfig, type ExperimentConfig, GPT2_VOCAB_SIZE, type ModelConfig } from '../config.ts';
import { decodeTokens, encodePrompt } from '../data/prompt.ts';
import { StudioError } from '../errors.ts';
import type { WholeParameters } from '../interpret/forward.ts';
import { buildModel } from '../model/build-model.ts';
import { fromHuggingFace } from '../model/hugging-face-config.ts';
import type { Model } from '../model/model.ts';
import { elementsOf } from '../ops/graph.ts';
import { type OpenDevice, openDevice } from '../runtime/device.ts';
import { type DeviceLogits, openDeviceLogits } from '../trainer/device-logits.ts';
import { interpretedLogits, type NextLogits, type SampleSettings, sampleTokens } from '../trainer/sample.ts';
import { openAdapter } from './adapters.ts';
import { openCheckpointPath } from './checkpoint-path.ts';
import { prepareCorpus } from './corpus.ts';
import { gpt2Tokens } from './gpt2-tokens.ts';

/** Elements of a parameter that are read at once. */
const PIECE_ELEMENTS = 16 * 2 ** 20;
/** What save_pretrained calls the weights of a model that fits one file, and what it writes beside it. */
const WEIGHTS_FILE = 'model.safetensors';
const CONFIG_FILE = 'config.json';
const INTERPRETER = 'interpreter';

export interface SampleRequest {
  /** A checkpoint: a file, a sharded folder, or a folder of Hugging Face's save_pretrained. */
  readonly path: string;
  /** Token ids, or a text in the tokens that the model was trained on: the words of its corpus, or GPT-2's. */
  readonly prompt: string | readonly number[];
  readonly settings: SampleSettings;
  /** Says what model it is, and whose words, where the checkpoint does not. */
  readonly config?: ExperimentConfig;
  /** `interpreter`, which is the default and needs no GPU, or an adapter as openAdapter takes it. */
  readonly adapter?: string;
  /** Where prepared corpora are kept. */
  readonly corpusFolder: string;
}

export interface Sampling {
  readonly prompt: readonly number[];
  /** The tokens that follow, each as it is drawn. */
  readonly tokens: AsyncGenerator<number, void, void>;
  /** Tokens as text; null where nobody knows the words. */
  text(tokens: readonly number[]): string | null;
  /** Gives the adapter back. */
  close(): Promise<void>;
}

/**
 * Continues a prompt from a checkpoint. What model it is comes from the run's config within it, from the
 * config.json beside it, or from the request. Throws StudioError: 'bad-data' where nothing says it or the weights do not fit,
 * 'not-found', and those of `openCheckpoint`, `encodePrompt` and `sampleTokens`.
 */
export async function sampleCheckpoint(request: SampleRequest): Promise<Sampling> {
  const { checkpoint, close } = await openCheckpointPath(await weightsPath(request.path));
  try {
    const origin = request.config ?? (await originOf(request.path, checkpoint));
    const model = buildModel({ ...origin.model, dropout: 0 }, vocabularyOf(origin.model, checkpoint));
    const wording = await wordingOf(origin, request);
    if (wording === null && typeof request.prompt === 'string')
      throw new StudioError('bad-data', `${request.path} does not say which words its tokens are; give token ids`);
    const prompt = typeof request.prompt === 'string' ? wording!.encode(request.prompt) : request.prompt;
    const engine = openEngine(request, model, await readParameters(checkpoint, model), prompt.length);
    return {
      prompt,
      tokens: sampleTokens(model, engine.next, prompt, request.settings),
      text: (tokens) => wording?.decode(tokens) ?? null,
      close: engine.close,
    };
  } finally {
    await close();
  }
}

/** What computes the logits. A device is opened when the first token is asked for, after all settings were looked at. */
function openEngine(
  { adapter: wanted = INTERPRETER, settings }: SampleRequest,
  model: Model,
  parameters: WholeParameters,
  promptTokens: number,
): { next: NextLogits; close: () => Promise<void> } {
  if (wanted === INTERPRETER) return { next: interpretedLogits(model, parameters), close: async () => undefined };
  let opened: Promise<DeviceLogits & { device: OpenDevice }> | null = null;
  const open = async () => {
    const { adapter, entry } = await openAdapter(wanted);
    const device = await openDevice(adapter);
    const options = { software: entry.software, maxTokens: promptTokens + settings.count - 1 };
    return { ...(await openDeviceLogits(model, parameters, device, options)), device };
  };
  return {
    next: async (tokens) => {
      opened ??= open();
      return (await opened).next(tokens);
    },
    close: async () => {
      const logits = await opened?.catch(() => null);
      logits?.close();
      logits?.device.close();
    },
  };
}

/** The file of weights in a folder of save_pretrained; any other path as it is. */
async function weightsPath(path: string): Promise<string> {
  const names: string[] = await readdir(path).catch(() => []);
  return names.includes(WEIGHTS_FILE) ? join(path, WEIGHTS_FILE) : path;
}

/** Where a checkpoint's model comes from; `data` where a run of ours trained it. */
interface Origin {
  readonly model: ModelConfig;
  readonly data?: ExperimentConfig['data'];
}

async function originOf(path: string, checkpoint: StoredCheckpoint): Promise<Origin> {
  const written = configOf(checkpoint);
  if (written !== null) {
    const { config, problems } = checkConfig(written);
    if (config) return config;
    throw new StudioError(
      'bad-data',
      `${path} has a config that is not ours: ${problems[0].path} ${problems[0].message}`,
    );
  }
  const name = join((await stat(path)).isDirectory() ? path : dirname(path), CONFIG_FILE);
  const text = await readFile(name, 'utf8').catch(() => null);
  if (text === null)
    throw new StudioError(
      'bad-data',
      `${path} does not say what model it holds, and no ${CONFIG_FILE} is beside it; give the config of its run`,
    );
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw new StudioError('bad-data', `${name} is not JSON`, { file: name }, { cause });
  }
  return { model: fromHuggingFace(json, name) };
}

/** Words of the model: what its config says, or as many rows as its embedding has. */
function vocabularyOf(model: ModelConfig, checkpoint: StoredCheckpoint): number | null {
  const names = ['transformer.wte.weight', 'model.embed_tokens.weight', 'embedding.weight'];
  const table = names.map((name) => checkpoint.model.get(name)).find((tensor) => tensor !== undefined);
  return model.vocabSize ?? table?.shape[0] ?? null;
}

/** Text as a model's tokens, and back. */
interface Wording {
  encode(text: string): number[];
  decode(tokens: readonly number[]): string;
}

async function wordingOf({ model, data }: Origin, { prompt, corpusFolder }: SampleRequest): Promise<Wording | null> {
  if (data === undefined) {
    // A folder of save_pretrained: a model of GPT-2's kind and vocabulary has its tokens.
    return model.kind === 'gpt2' && model.vocabSize === GPT2_VOCAB_SIZE ? gpt2Tokens() : null;
  }
  if (data.kind === 'batches') return null;
  if (data.tokenizer === 'gpt2') return gpt2Tokens();
  try {
    const words = (await prepareCorpus(data, corpusFolder)).words ?? [];
    return { encode: (text) => encodePrompt(text, words), decode: (tokens) => decodeTokens(tokens, words) };
  } catch (error) {
    // Token ids go without words: the text may be gone by now.
    if (typeof prompt !== 'string' && error instanceof StudioError) return null;
    throw error;
  }
}

async function readParameters(checkpoint: StoredCheckpoint, model: Model): Promise<WholeParameters> {
  const { missing, wrongShapes } = compareNames(checkpoint, model.parameters);
  const wrong = wrongShapes.map((w) => `${w.name} is [${w.found}] and should be [${w.expected}]`);
  const problems = [...wrong, ...missing.map((name) => `${name} is missing`)];
  if (problems.length)
    throw new StudioError(
      'bad-data',
      `${checkpoint.name} does not fit the model: ${problems.slice(0, 10).join('; ')}`,
      {
        missing,
        wrongShapes,
      },
    );
  const parameters = new Map<string, Float32Array<ArrayBuffer>>();
  for (const { name, shape } of model.parameters) {
    const values = new Float32Array(elementsOf(shape));
    for (let first = 0; first < values.length; first += PIECE_ELEMENTS)
      values.set(await readParameter(checkpoint, name, first, Math.min(PIECE_ELEMENTS, values.length - first)), first);
    parameters.set(name, values);
  }
  return parameters;
}
