import type { ChildProcess, ChildProcessWithoutNullStreams } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { RunEvent } from '../../engine/trainer/events.ts';
import { type Said, startCli, untilClosed } from '../fixtures/cli-process.ts';

const project = fileURLToPath(new URL('../../', import.meta.url));
const testdata = join(project, 'engine/testdata');
let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'cli-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

function start(args: string[]): ChildProcessWithoutNullStreams {
  const env = { ...process.env, STUDIO_DATA: join(folder, 'data') };
  return startCli(args, { cwd: folder, env });
}

/** Runs a command as a person would, in a folder of its own. */
function studio(...args: string[]): Promise<Said> {
  return untilClosed(start(args));
}

const small = (more: string) => `
name: small
adapter: interpreter
model: { kind: demo-transformer, ninp: 8, nhead: 2, nhid: 8, nlayers: 1 }
data: { kind: batches, path: batches.json }
${more}`;

async function writeRun(more: string): Promise<string> {
  const batch = (seed: number) => ({ input: [1, 2, 3, seed], target: [2, 3, 4, seed] });
  await writeFile(join(folder, 'batches.json'), JSON.stringify([3, 2, 1].map((n) => [batch(n), batch(n + 3)])));
  await writeFile(join(folder, 'run.yaml'), small(more));
  return 'run.yaml';
}

describe('train', () => {
  it('reports start, every step of every rank, and the end; writes the checkpoint and the weights', async () => {
    const config = await writeRun('trainer: { steps: 3 }\ncheckpoint: { format: full }');
    const { code, err } = await studio(
      'train',
      config,
      '--report',
      'r.jsonl',
      '--out',
      'out',
      '--weights',
      'w.safetensors',
    );
    expect(code, err).toBe(0);
    const events = (await readFile(join(folder, 'r.jsonl'), 'utf8'))
      .trim()
      .split('\n')
      .map((line) => RunEvent.parse(JSON.parse(line)));
    expect(events[0]).toMatchObject({ event: 'start', world: 2 });
    for (const rank of [0, 1])
      expect(events.flatMap((e) => (e.event === 'step' && e.rank === rank ? [e.step] : []))).toEqual([0, 1, 2]);
    const end = events.at(-1);
    expect(end).toMatchObject({ event: 'end', status: 'finished', checkpoints: [{ format: 'full', step: 3 }] });
    const inspected = await studio('checkpoint', 'inspect', 'out/checkpoints/step-000003.ckpt', '--json');
    expect(JSON.parse(inspected.out)).toMatchObject({ format: 'full', iter: 3, optimizers: [{ key: 'optimizer' }] });
    const weights = JSON.parse((await studio('checkpoint', 'inspect', 'w.safetensors', '--json')).out);
    expect(weights.format).toBe('safetensors');
    const plan = JSON.parse((await studio('plan', config, '--json')).out);
    expect(plan.params).toBe(weights.params);
    expect(end?.event === 'end' && end.peakBytesByRank).toEqual([plan.peakBytes, plan.peakBytes]);
  });

  it('ends with 2 and every problem when the config is wrong, and starts nothing', async () => {
    const config = await writeRun('devices: 9\nlearningRate: 1');
    const { code, out, err } = await studio('train', config, '--report', 'r.jsonl');
    expect([code, out]).toEqual([2, '']);
    expect(err).toMatch(/devices: .*\n?.*learningRate: unknown key|learningRate: unknown key[\s\S]*devices: /);
    await expect(readFile(join(folder, 'r.jsonl'))).rejects.toThrow(/ENOENT/);
  });

  it('writes a trace of the third step, or of the one asked for, of both ranks', async () => {
    const config = await writeRun('trainer: { steps: 3 }\ncheckpoint: { atEnd: false }');
    const trace = async (...more: string[]) => {
      const { code, err } = await studio('train', config, '--out', 'out', '--trace', 't.json', ...more);
      expect(code, err).toBe(0);
      return { ...JSON.parse(await readFile(join(folder, 't.json'), 'utf8')), err };
    };
    const third = await trace();
    expect([third.otherData.step, third.otherData.ranks]).toEqual([2, 2]);
    expect(third.err).toContain('trace of step 2 in t.json');
    const processes = third.traceEvents.filter((e: { name: string }) => e.name === 'process_name');
    expect(processes.map((e: { args: unknown }) => e.args)).toEqual([{ name: 'rank 0' }, { name: 'rank 1' }]);
    expect((await trace('--trace-step', '0')).otherData.step).toBe(0);
    const late = await studio('train', config, '--trace', 't.json', '--trace-step', '3');
    expect(late).toMatchObject({
      code: 2,
      err: expect.stringMatching(/--trace-step 3: trainer.steps 3 makes steps 0 to 2/),
    });
    // A run that goes on from a checkpoint begins later, which only that tells.
    await studio('train', await writeRun('trainer: { steps: 2 }'), '--out', 'first');
    const resumed = await writeRun('trainer: { steps: 3 }\ncheckpoint: { resume: first/checkpoints/step-000002 }');
    const early = await studio('train', resumed, '--out', 'goes-on', '--trace', 't.json', '--trace-step', '1');
    expect(early).toMatchObject({ code: 2, err: expect.stringMatching(/step 1 cannot be traced.* steps 2 to 2/) });
  });

  it('ends with 1 and says why when the data are wrong', async () => {
    const config = await writeRun('trainer: { steps: 4 }');
    const { code, err } = await studio('train', config, '--report', 'r.jsonl');
    expect(code, err).toBe(1);
    const lines = (await readFile(join(folder, 'r.jsonl'), 'utf8')).trim().split('\n');
    expect(JSON.parse(lines.at(-1) as string)).toMatchObject({
      event: 'end',
      status: 'failed',
      error: { code: 'bad-data' },
    });
  });
});

describe('train, when things go otherwise', () => {
  const endless = `
name: endless
adapter: interpreter
model: { kind: demo-transformer, ninp: 8, nhead: 2, nhid: 8, nlayers: 1 }
data: { kind: moby-dick, blockSize: 4 }
checkpoint: { atEnd: false }
trainer: { steps: 1000000 }
`;

  /** The command, with what to do once it has said something. */
  async function began(args: string[], until: RegExp): Promise<{ child: ChildProcess; ended: Promise<number | null> }> {
    await writeFile(join(folder, 'endless.yaml'), endless);
    const child = start(args);
    const ended = new Promise<number | null>((resolve) => child.on('close', resolve));
    let said = '';
    await new Promise<void>((resolve, reject) => {
      const hear = (text: string) => {
        said += text;
        if (until.test(said)) resolve();
      };
      child.stdout?.setEncoding('utf8').on('data', hear);
      child.stderr?.setEncoding('utf8').on('data', hear);
      void ended.then(() => reject(new Error(said)));
    });
    return { child, ended };
  }

  const nothingRuns = () => expect(existsSync(join(folder, 'out', 'processes.json'))).toBe(false);

  it.each(['stdout', 'stderr'] as const)('ends the run with 1 when nobody reads its %s any more', async (output) => {
    const args = ['train', 'endless.yaml', '--out', 'out', '--report', '-'];
    const { child, ended } = await began(args, output === 'stdout' ? /"event":"step"/ : /^1 of 1000000 steps done/m);
    let said = '';
    child.stderr?.on('data', (text) => {
      said += text;
    });
    child[output]?.destroy();
    expect(await ended).toBe(1);
    nothingRuns();
    if (output === 'stdout') expect(said).toMatch(/nobody reads the report any more; stopping[\s\S]*stopped after/);
  });

  it('ends after its step when interrupted, and at once when interrupted again; both with 1', async () => {
    const args = ['train', 'endless.yaml', '--out', 'out'];
    const once = await began(args, /^1 of 1000000 steps done/m);
    once.child.kill('SIGINT');
    expect(await once.ended).toBe(1);
    nothingRuns();
    const twice = await began(args, /^1 of 1000000 steps done/m);
    twice.child.kill('SIGINT');
    twice.child.kill('SIGINT');
    expect(await twice.ended).toBe(1);
    nothingRuns();
  });

  it('takes two signals of one Ctrl-C as one: the last step is finished and saved', async () => {
    const args = ['train', 'endless.yaml', '--out', 'out', '--weights', 'w.safetensors'];
    const { child, ended } = await began(args, /^1 of 1000000 steps done/m);
    child.kill('SIGINT');
    setTimeout(() => child.kill('SIGINT'), 20);
    expect(await ended).toBe(1);
    expect(existsSync(join(folder, 'w.safetensors'))).toBe(true);
  });

  it('refuses a folder in which a run trains, and an --out without a name, with 2', async () => {
    const args = ['train', 'endless.yaml', '--out', 'out'];
    const { child, ended } = await began(args, /^1 of 1000000 steps done/m);
    const second = await studio(...args);
    expect([second.code, second.err]).toEqual([
      2,
      expect.stringMatching(/out is in use by a run, process \d+\. Name another/),
    ]);
    child.kill('SIGINT');
    expect(await ended).toBe(1);
    expect((await readdir(join(folder, 'out'))).filter((name) => name.includes('lock'))).toEqual([]);
    expect((await studio('train', 'endless.yaml', '--out', '')).code).toBe(2);
  });

  it('gives two runs of one name, begun in the same second, a folder each', async () => {
    const config = await writeRun('trainer: { steps: 1 }');
    const both = await Promise.all([studio('train', config), studio('train', config), studio('train', config)]);
    expect(both.map(({ code }) => code)).toEqual([0, 0, 0]);
    expect(await readdir(join(folder, 'data/trained'))).toHaveLength(3);
  });

  it('refuses an --out that is a file and an adapter that is not here, with 2', async () => {
    const config = await writeRun('trainer: { steps: 3 }');
    await writeFile(join(folder, 'file'), '');
    for (const out of ['file', 'file/below'])
      expect(await studio('train', config, '--out', out)).toMatchObject({
        code: 2,
        err: `--out ${out}: a file is there; --out is the run's folder.\n`,
      });
    await writeFile(join(folder, 'typo.yaml'), 'adapter: h2000');
    const typo = { code: 2, err: expect.stringContaining('nothing here is called h2000. There is: ') };
    expect(await studio('train', 'typo.yaml')).toMatchObject(typo);
    expect(await studio('plan', 'typo.yaml')).toMatchObject(typo);
  });

  it('never loses a file to --weights, and refuses a file that cannot be written before it starts', async () => {
    const config = await writeRun('trainer: { steps: 1 }');
    await writeFile(join(folder, 'mine.safetensors'), 'mine');
    expect(await studio('train', config, '--out', 'run', '--weights', 'mine.safetensors')).toMatchObject({
      code: 2,
      err: expect.stringMatching(/^--weights mine\.safetensors: a file is there, which would be lost\. Name another/),
    });
    for (const option of ['--report', '--trace'])
      expect(await studio('train', config, '--out', 'run', option, 'nowhere/f')).toMatchObject({
        code: 2,
        err: `${option} nowhere/f: there is no folder ${join(folder, 'nowhere')}. Make it, or name another.\n`,
      });
    expect((await readdir(folder)).sort()).toEqual(['batches.json', 'mine.safetensors', 'run.yaml']);
  });

  it('writes the report into the folder that it makes, and refuses an --out that takes no file', async () => {
    const config = await writeRun('trainer: { steps: 1 }\ncheckpoint: { atEnd: false }');
    expect((await studio('train', config, '--out', 'run', '--report', 'run/r.jsonl')).code).toBe(0);
    expect(await readFile(join(folder, 'run/r.jsonl'), 'utf8')).toContain('"status":"finished"');
    expect(await studio('train', config, '--out', '/proc/run')).toMatchObject({
      code: 2,
      err: '--out /proc/run: it cannot be written, since the system says ENOENT. Name another folder, or leave it out.\n',
    });
  });

  it('prints the memory tables of the ranks only where asked', async () => {
    const config = await writeRun('trainer: { steps: 3 }\ncheckpoint: { atEnd: false }');
    const plain = await studio('train', config);
    expect(plain.code, plain.err).toBe(0);
    expect(plain.err).not.toContain('memory of rank');
    expect(plain.err.split('\n').length).toBeLessThan(12);
    const { err } = await studio('train', config, '--summary');
    for (const rank of [0, 1]) expect(err).toContain(`memory of rank ${rank}\n`);
  });
});

describe('plan', () => {
  it.each([
    ['blockSize: 20', '', /data\.blockSize 20.*lower one of these/],
    [
      'blockSize: 2, validationFraction: 0.01',
      'trainer: { validateEvery: 1 }',
      /validationFraction 0\.01 leaves .* 0 for validation/,
    ],
    ['blockSize: 2', 'vocabSize: 2', /model\.vocabSize: 2 is fewer than the \d+ words/],
  ])('refuses what train refuses: %s %s', async (data, more, says) => {
    await writeFile(join(folder, 'text.txt'), 'one two three four five six seven eight nine ten');
    const isModel = more.startsWith('vocabSize');
    await writeFile(
      join(folder, 'run.yaml'),
      `adapter: interpreter
devices: 1
model: { kind: demo-transformer, ninp: 8, nhead: 2, nhid: 8, nlayers: 1${isModel ? `, ${more}` : ''} }
data: { kind: wikitext2, path: text.txt, ${data} }
${isModel ? '' : more}
`,
    );
    const [planned, trained] = await Promise.all([
      studio('plan', 'run.yaml', '--adapter', 'interpreter'),
      studio('train', 'run.yaml'),
    ]);
    expect(planned.code).toBe(trained.code);
    expect(planned.err).toMatch(says);
    expect(trained.err).toMatch(says);
  });
});

describe('sample', () => {
  const hf = join(testdata, 'gpt2/hf');

  it('continues token ids, greedily or by chance, the same each time', async () => {
    const asked = ['sample', hf, '--tokens', '77,79', '--count', '6'];
    const drawn = ['--temperature', '1', '--top-k', '50', '--seed', '3', '--json'];
    const [greedy, one, again] = await Promise.all([
      studio(...asked, '--json'),
      studio(...asked, ...drawn),
      studio(...asked, ...drawn),
    ]);
    const { prompt, tokens, text } = JSON.parse(greedy.out);
    expect([prompt, tokens.length, text]).toEqual([[77, 79], 6, null]);
    expect(JSON.parse(one.out)).toEqual(JSON.parse(again.out));
    expect(JSON.parse(one.out).tokens).not.toEqual(tokens);
    expect((await studio(...asked)).out).toBe(`77 79 ${tokens.join(' ')}\n`);
  });

  it('says what is wrong before it says anything else', async () => {
    const long = await studio('sample', hf, '--tokens', '1', '--count', '99');
    expect(long).toEqual({ code: 2, out: '', err: expect.stringContaining('the model has 24') });
    const text = await studio('sample', hf, '--prompt', 'to be');
    expect(text).toEqual({ code: 1, out: '', err: expect.stringContaining('give token ids') });
    for (const args of [['--tokens', '1', '--prompt', 'a'], [], ['--tokens', 'one']])
      expect((await studio('sample', hf, ...args)).code, args.join(' ')).toBe(2);
  });
});

describe('checkpoint', () => {
  it('inspect shows a person the first tensors and how many more there are, all of them when asked', async () => {
    const from = join(testdata, 'demo-transformer', 'dcp_fsdp1_ws2');
    const { tensors } = JSON.parse((await studio('checkpoint', 'inspect', from, '--json')).out);
    const listed = (out: string) => out.split('\n').filter((line) => line.includes('float32')).length;
    const short = (await studio('checkpoint', 'inspect', from)).out;
    expect(listed(short)).toBe(12);
    expect(short).toContain(`… and ${tensors.length - 12} more (--all)`);
    expect(short).toMatch(/: sharded, [\d.]+ MiB in \d+ files/);
    expect(listed((await studio('checkpoint', 'inspect', from, '--all')).out)).toBe(tensors.length);
    expect((await studio('checkpoint', 'verify', from, '--all')).code).toBe(2);
  });

  it('converts a checkpoint through every form and back to the same tensors; each verifies', async () => {
    const from = join(testdata, 'demo-transformer', 'dcp_fsdp1_ws2');
    for (const [source, target, ...more] of [
      [from, 'a.ckpt'],
      ['a.ckpt', 'folder', '--ranks', '3'],
      ['folder', 'b.ckpt'],
      ['b.ckpt', 'c.safetensors'],
    ]) {
      expect((await studio('checkpoint', 'convert', source, target, ...more)).err).toBe('');
      expect(await studio('checkpoint', 'verify', target)).toMatchObject({
        code: 0,
        out: expect.stringContaining('sha256'),
      });
    }
    const inspect = async (path: string) => JSON.parse((await studio('checkpoint', 'inspect', path, '--json')).out);
    const [a, folderOf3, b, c] = await Promise.all(['a.ckpt', 'folder', 'b.ckpt', 'c.safetensors'].map(inspect));
    expect([a.format, folderOf3.format, c.format]).toEqual(['full', 'sharded', 'safetensors']);
    expect(b.tensors).toHaveLength(a.tensors.length);
    expect(c.params).toBe(a.params);
    expect(folderOf3.tensors[0].parts).toHaveLength(3);
    expect(await readFile(join(folder, 'b.ckpt'))).toEqual(await readFile(join(folder, 'a.ckpt')));
    expect((await studio('checkpoint', 'convert', from, 'a.ckpt')).err).toMatch(/a.ckpt exists/);
  });

  it('names the file that changed', async () => {
    const from = join(testdata, 'demo-transformer', 'dcp_fsdp2_ws2');
    await studio('checkpoint', 'convert', from, 'folder', '--ranks', '2');
    const file = join(folder, 'folder', '__1_0.distcp');
    const bytes = await readFile(file);
    bytes[bytes.length >> 1] ^= 1;
    await writeFile(file, bytes);
    expect(await studio('checkpoint', 'verify', 'folder')).toMatchObject({
      code: 1,
      err: expect.stringContaining('__1_0.distcp'),
    });
  });

  it('training goes on from the latest in its folder, and from one by name', async () => {
    const config = await writeRun('trainer: { steps: 2 }\ncheckpoint: { every: 1 }');
    expect((await studio('train', config, '--out', 'out')).code).toBe(0);
    await writeRun('trainer: { steps: 3 }\ncheckpoint: { resume: latest }');
    const again = await studio('train', config, '--out', 'out', '--report', 'r.jsonl');
    expect(again).toMatchObject({ code: 0 });
    const events = (await readFile(join(folder, 'r.jsonl'), 'utf8'))
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(events.flatMap((e) => (e.event === 'step' && e.rank === 0 ? [e.step] : []))).toEqual([2]);
    expect(events.at(-1).checkpoints).toMatchObject([{ step: 3, format: 'sharded' }]);
    await writeRun('trainer: { steps: 3 }\ncheckpoint: { resume: out/checkpoints/step-000001 }');
    expect(await studio('train', config, '--out', 'other')).toMatchObject({ code: 0 });
    await writeRun('trainer: { steps: 3 }\ncheckpoint: { resume: latest }');
    expect((await studio('train', config, '--out', 'none')).err).toMatch(/latest finds no whole checkpoint in none/);
  });
});

describe('the command line', () => {
  it('says how it is used', async () => {
    const all = await studio('help');
    expect(all).toMatchObject({ code: 0, out: expect.stringContaining('\n  train CONFIG') });
    expect(await studio()).toMatchObject({ code: 2, out: all.out });
    const [asked, helped] = await Promise.all([studio('plan', 'a', '--help'), studio('help', 'plan')]);
    expect(asked).toEqual({ code: 0, out: expect.stringMatching(/^Usage: .* plan CONFIG \[--adapter/), err: '' });
    expect(helped.out).toBe(asked.out);
    expect(asked.out).not.toContain('serve');
  });

  it.each([
    ['nope', 'train|plan|', 'there is no command nope'],
    ['help trian', 'train|plan|', 'there is no command trian. Did you mean train?'],
    ['train a --reprot r', 'train CONFIG [', 'there is no option --reprot. Did you mean --report?'],
  ])('%s: ends with 2, says what is wrong, and the usage of that command only', async (line, usage, says) => {
    const { code, out, err } = await studio(...line.split(' '));
    expect([code, out]).toEqual([2, '']);
    const [said, used, see, ...rest] = err.split('\n');
    expect([said, rest]).toEqual([says, ['']]);
    expect(used.startsWith(`usage: npm run -s studio -- ${usage}`)).toBe(true);
    expect(see).toMatch(/^see npm run -s studio -- (train )?--help$/);
  });

  it('refuses a pickle that asks for a program, by its name', async () => {
    const { code, err } = await studio('checkpoint', 'inspect', join(testdata, 'malicious.pt'));
    expect([code, err]).toEqual([1, expect.stringContaining('posix.system')]);
  });
});
