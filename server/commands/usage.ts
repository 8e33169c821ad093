import { StudioError } from '../../engine/errors.ts';

export const USAGE = `Usage: npm run -s studio -- COMMAND

  train CONFIG [--report FILE.jsonl] [--out DIR] [--weights FILE] [--record] [--trace FILE.json] [--summary]
      Trains what CONFIG (YAML or JSON) says. --report writes one JSON object a line ("-": standard output), --out is
      the run's folder (checkpoints/, logs/), --weights a safetensors file of the final weights, --record checks every
      tensor's life on the device at a cost in speed. --trace is one step as Chrome trace JSON, when each step of the
      schedule ran on every rank and what it waited for: the third, or that of --trace-step N (from 0). --summary prints
      each rank's memory table at the end; a report has it in any case.
  plan CONFIG [--adapter NAME] [--json]
      Memory by category and phase, its peak and where, and a time estimate. Touches no GPU.
  devices [--json] [--calibrate] [--tune]
      The adapters found, with what each offers.
  checkpoint inspect|verify|convert FILE [TO] [--format full|sharded|safetensors] [--ranks N] [--all] [--json]
      FILE is a .ckpt, .pt or .safetensors file or a sharded folder; nothing in it is executed. inspect: what it holds
      (--all: every tensor, and the run's config).
      verify: reads all of it against its digests, or against what its format has to check. convert: writes it as TO, in
      the form that TO's name says if --format does not, a folder in the files of N ranks. Nothing is overwritten.
  sample CHECKPOINT --prompt TEXT|--tokens IDS [--count 20] [--temperature 0] [--top-k K] [--seed 0]
         [--adapter interpreter] [--config CONFIG] [--json]
      Continues TEXT (in the words of the run's corpus, or in GPT-2's tokens) or IDS from a checkpoint of GPT-2 or
      Llama, or from a folder of Hugging Face's save_pretrained. Temperature 0: the likeliest each time. The default
      adapter needs no GPU. --config says what model it is where the checkpoint does not.
  serve [--host 127.0.0.1] [--port 3000] [--data ./data] [--token TOKEN] [--dev]
      The studio. Also HOST, PORT, STUDIO_DATA, STUDIO_TOKEN.

Exit code 0: done. 1: it failed. 2: the command line or the config is wrong.`;

const CORRECTABLE: readonly string[] = ['invalid-config', 'forbidden'];

/** A command line that cannot be understood. */
export class UsageError extends Error {
  override name = 'UsageError';
}

/** The exit code of an error: 2 for what the person can correct in the command line or the config, 1 for the rest. */
export function exitCodeOf(error: unknown): 1 | 2 {
  if (error instanceof UsageError) return 2;
  if (!(error instanceof StudioError)) return 1;
  // An adapter that was named and is not here; that there is none at all is not the config's fault.
  const { wanted } = error.details;
  if (error.code === 'no-adapter' && typeof wanted === 'string' && !['auto', 'software'].includes(wanted)) return 2;
  return exitCodeOfError(error.code);
}

/** The same of an error's code, as a run's end carries it. */
export function exitCodeOfError(code: string): 1 | 2 {
  return CORRECTABLE.includes(code) ? 2 : 1;
}
