import { StudioError } from '../engine/errors.ts';
import { didYouMean } from '../engine/nearest-word.ts';
import { printableLines, watchOutput } from './commands/output.ts';
import { COMMAND_NAMES, type CommandName, exitCodeOf, help, UsageError, usageOf } from './commands/usage.ts';

/** Each command is loaded when it is asked for: `plan` needs no database and `checkpoint` no GPU. */
const RUN: Readonly<Record<CommandName, (args: string[]) => Promise<number>>> = {
  serve: async (args) => (await import('./commands/serve.ts')).serve(args),
  train: async (args) => (await import('./commands/train.ts')).train(args),
  plan: async (args) => (await import('./commands/plan.ts')).plan(args),
  devices: async (args) => (await import('./commands/devices.ts')).devices(args),
  checkpoint: async (args) => (await import('./commands/checkpoint.ts')).checkpoint(args),
  sample: async (args) => (await import('./commands/sample.ts')).sample(args),
};

async function main([first, ...rest]: string[]): Promise<number> {
  const isHelp = first === 'help' || first === '--help' || first === '-h';
  const name = COMMAND_NAMES.find((each) => each === (isHelp ? rest[0] : first)) ?? null;
  try {
    const unknown = isHelp ? rest[0] : first;
    if (name === null && unknown !== undefined)
      throw new UsageError(`there is no command ${unknown}${didYouMean(unknown, COMMAND_NAMES)}`);
    if (name === null || isHelp || asksForHelp(rest)) {
      process.stdout.write(`${help(name)}\n`);
      return first === undefined ? 2 : 0;
    }
    return await RUN[name](rest);
  } catch (error) {
    if (error instanceof UsageError) {
      process.stderr.write(`${printableLines(error.message)}\n${usageOf(name)}\n`);
      return 2;
    }
    // A person gets the message; what nobody foresaw comes with its stack.
    const said = error instanceof StudioError ? error.message : String((error as Error).stack);
    process.stderr.write(`${printableLines(said)}\n`);
    return exitCodeOf(error);
  }
}

/** Whether a command's options, before a `--`, ask what it does. */
function asksForHelp(args: readonly string[]): boolean {
  const end = args.indexOf('--');
  return args.slice(0, end < 0 ? args.length : end).some((arg) => arg === '--help' || arg === '-h');
}

watchOutput();
process.exitCode = await main(process.argv.slice(2));
