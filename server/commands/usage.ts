import { StudioError } from '../../engine/errors.ts';

interface CommandWords {
  /** What follows the command's name. */
  readonly takes: string;
  /** What it does, wrapped to be printed. */
  readonly about: string;
}

/** The command line, as it is printed and as the README has it. */
export const COMMANDS = {
  train: {
    takes:
      'CONFIG [--report FILE.jsonl] [--out DIR] [--weights FILE] [--record] [--trace FILE.json] [--trace-step N] [--summary]',
    about: `
Trains what CONFIG (YAML or JSON) says. --report writes one JSON object a line ("-": standard output), --out is the
run's folder (checkpoints/, logs/), --weights a safetensors file of the final weights, --record checks every tensor's
life on the device at a cost in speed. --trace is one step as Chrome trace JSON, when each step of the schedule ran on
every rank and what it waited for: the third, or that of --trace-step N (from 0). --summary prints each rank's memory
table at the end; a report has it in any case. When nobody reads the report, or what is printed, any more, the run
stops after its step.`,
  },
  plan: {
    takes: 'CONFIG [--adapter NAME] [--json]',
    about: `
Memory by category and phase, its peak and where, and a time estimate. Touches no GPU. NAME is also interpreter or
h200. What does not fit memoryBudgetMiB is said, and the exit code is 0 all the same.`,
  },
  devices: {
    takes: '[--json] [--calibrate] [--tune]',
    about: `
The adapters found, with what each offers. --calibrate measures their rates for the time estimate, --tune which kernel
variants are the fastest on a GPU; both are kept in the data folder.`,
  },
  checkpoint: {
    takes: 'inspect|verify|convert FILE [TO] [--format full|sharded|safetensors] [--ranks N] [--all] [--json]',
    about: `
FILE is a .ckpt, .pt or .safetensors file or a sharded folder; nothing in it is executed. inspect: what it holds (--all:
every tensor, and the run's config). verify: reads all of it against its digests, or against what its format has to
check. convert: writes it as TO, in the form that TO's name says if --format does not, a folder in the files of N ranks.
Nothing is overwritten.`,
  },
  sample: {
    takes:
      'CHECKPOINT --prompt TEXT|--tokens IDS [--count 20] [--temperature 0] [--top-k K] [--seed 0] [--adapter interpreter] [--config CONFIG] [--json]',
    about: `
Continues TEXT (in the words of the run's corpus, or in GPT-2's tokens) or IDS from a checkpoint of GPT-2 or Llama, or
from a folder of Hugging Face's save_pretrained. Temperature 0: the likeliest each time. The default adapter needs no
GPU. --config says what model it is where the checkpoint does not.`,
  },
  serve: {
    takes: '[--host 127.0.0.1] [--port 3000] [--data ./data] [--token TOKEN] [--dev]',
    about: `
The studio. Also HOST, PORT, STUDIO_DATA, STUDIO_TOKEN.`,
  },
} as const satisfies Record<string, CommandWords>;

export type CommandName = keyof typeof COMMANDS;
export const COMMAND_NAMES = Object.keys(COMMANDS) as CommandName[];

const PROGRAM = 'npm run -s studio --';
const EXIT_CODES = 'Exit code 0: done. 1: it failed. 2: the command line or the config is wrong.';

/** What `help` prints of all commands, and `COMMAND --help` of one. */
export function help(name: CommandName | null): string {
  const lines = (text: string, indent: string) => text.replaceAll('\n', `\n${indent}`);
  const said =
    name === null
      ? [
          'COMMAND',
          ...COMMAND_NAMES.map((each) => `\n  ${each} ${COMMANDS[each].takes}${lines(COMMANDS[each].about, '      ')}`),
        ]
      : [`${name} ${COMMANDS[name].takes}`, lines(COMMANDS[name].about, '  ')];
  return [`Usage: ${PROGRAM} ${said[0]}`, ...said.slice(1), '', EXIT_CODES].join('\n');
}

/** What follows a usage error: the line of the command that was meant, and where more is said. */
export function usageOf(name: CommandName | null): string {
  if (name === null) return `usage: ${PROGRAM} ${COMMAND_NAMES.join('|')} …\nsee ${PROGRAM} --help`;
  return `usage: ${PROGRAM} ${name} ${COMMANDS[name].takes}\nsee ${PROGRAM} ${name} --help`;
}

const CORRECTABLE: readonly string[] = ['invalid-config', 'forbidden'];

/** A command line that cannot be understood; the command's usage is said after it. */
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
