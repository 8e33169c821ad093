import { StudioError } from '../engine/errors.ts';
import { watchOutput } from './commands/output.ts';
import { exitCodeOf, USAGE, UsageError } from './commands/usage.ts';

/** Each command is loaded when it is asked for: `plan` needs no database and `checkpoint` no GPU. */
const COMMANDS: Readonly<Record<string, (args: string[]) => Promise<number>>> = {
  serve: async (args) => (await import('./commands/serve.ts')).serve(args),
  train: async (args) => (await import('./commands/train.ts')).train(args),
  plan: async (args) => (await import('./commands/plan.ts')).plan(args),
  devices: async (args) => (await import('./commands/devices.ts')).devices(args),
  checkpoint: async (args) => (await import('./commands/checkpoint.ts')).checkpoint(args),
  sample: async (args) => (await import('./commands/sample.ts')).sample(args),
};

async function main([name, ...args]: string[]): Promise<number> {
  if (name === undefined || name === 'help' || name === '--help' || name === '-h') {
    process.stdout.write(`${USAGE}\n`);
    return name === undefined ? 2 : 0;
  }
  try {
    if (!Object.hasOwn(COMMANDS, name)) throw new UsageError(`there is no command ${name}`);
    return await COMMANDS[name](args);
  } catch (error) {
    const code = (error as { code?: unknown }).code;
    const isUsage = error instanceof UsageError || (typeof code === 'string' && code.startsWith('ERR_PARSE_ARGS'));
    if (isUsage) {
      process.stderr.write(`${(error as Error).message}\n\n${USAGE}\n`);
      return 2;
    }
    // A person gets the message; what nobody foresaw comes with its stack.
    process.stderr.write(`${error instanceof StudioError ? error.message : (error as Error).stack}\n`);
    return exitCodeOf(error);
  }
}

watchOutput();
process.exitCode = await main(process.argv.slice(2));
