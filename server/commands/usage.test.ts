import { describe, expect, it } from 'vitest';
import { checkpoint } from './checkpoint.ts';
import { devices } from './devices.ts';
import { plan } from './plan.ts';
import { sample } from './sample.ts';
import { serve } from './serve.ts';
import { train } from './train.ts';
import { COMMAND_NAMES, help, UsageError, usageOf } from './usage.ts';

const COMMANDS = { checkpoint, devices, plan, sample, serve, train };

describe('a command line that cannot be understood is refused before anything is done', () => {
  it.each([
    ['train', 'train takes one CONFIG file'],
    ['train a b', 'train takes one CONFIG file'],
    ['train a --nope', 'there is no option --nope'],
    ['train a --reprot r', 'there is no option --reprot. Did you mean --report?'],
    ['train a -o x', 'there is no option -o'],
    ['train a --report', '--report needs a value'],
    [
      'train a --report --record',
      '--report needs a value, and --record looks like an option; --report=--record takes it',
    ],
    ['train a --record=yes', '--record takes no value, and yes is one'],
    ['train a --trace-step 1', '--trace-step goes with --trace FILE'],
    ['train a --trace f --trace-step last', '--trace-step last: a step is a whole number, counted from 0'],
    ['plan', 'plan takes one CONFIG file'],
    ['devices all', 'all: only options are taken here'],
    ['devices --calibrat', 'there is no option --calibrat. Did you mean --calibrate?'],
    ['serve --port x', '--port x: a port is a whole number from 0 to 65535'],
    ['sample a', 'sample takes either --prompt or --tokens'],
    ['sample a --tokens 1 --temprature 1', 'there is no option --temprature. Did you mean --temperature?'],
    ['checkpoint', 'checkpoint takes one of inspect, verify, convert, and a FILE'],
    ['checkpoint inpsect a', 'checkpoint inpsect is none of inspect, verify, convert. Did you mean inspect?'],
    ['checkpoint inspect', 'checkpoint inspect takes one FILE'],
    ['checkpoint inspect a b', 'checkpoint inspect takes one FILE'],
    ['checkpoint convert a', 'checkpoint convert takes FILE and TO'],
    ['checkpoint convert a b --format shard', '--format shard is none of full, sharded, safetensors'],
    ['checkpoint verify a --all', '--all is of checkpoint inspect'],
  ])('%s', async (line, says) => {
    const [name, ...args] = line.split(' ');
    const refused = await COMMANDS[name as keyof typeof COMMANDS](args).catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(UsageError);
    expect((refused as Error).message).toBe(says);
  });
});

it('help is of all commands or of one, and a usage line of one', () => {
  for (const name of COMMAND_NAMES) {
    expect(help(null)).toContain(`\n  ${name} `);
    expect(help(name)).toMatch(new RegExp(`^Usage: npm run -s studio -- ${name} `));
    expect(usageOf(name).split('\n')).toHaveLength(2);
  }
  expect(help('plan')).not.toContain('serve');
});
