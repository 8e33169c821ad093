import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { readConfigFile } from './config-file.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'config-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

async function write(text: string, name = 'config.yaml'): Promise<string> {
  const file = join(folder, name);
  await writeFile(file, text);
  return file;
}

describe('a config file', () => {
  it('is YAML or JSON, and its relative paths start at the working directory', async () => {
    const yaml = await readConfigFile(
      await write('name: a\ndata: { kind: batches, path: some/b.json }\ninit: { from: /abs/w.safetensors }\n'),
    );
    expect(yaml).toMatchObject({
      name: 'a',
      data: { path: resolve('some/b.json') },
      init: { from: '/abs/w.safetensors' },
    });
    const json = await readConfigFile(await write('{"name": "b", "devices": 1}', 'c.json'));
    expect(json).toMatchObject({ name: 'b', devices: 1, data: { kind: 'moby-dick' } });
    expect(await readConfigFile(await write('{}'))).toMatchObject({ name: 'run' });
  });

  it('is refused by file and line, or by all its own keys at once', async () => {
    await expect(readConfigFile(join(folder, 'none.yaml'))).rejects.toThrow(/none.yaml is not there/);
    await expect(readConfigFile(await write('a: 1\nb: [1\nc: 2\n'))).rejects.toThrow(
      /config.yaml line \d+ is neither YAML nor JSON/,
    );
    await expect(
      readConfigFile(await write('model: { kind: demo-transformer, nhead: 3 }\nlearningRate: 1\n')),
    ).rejects.toMatchObject({
      code: 'invalid-config',
      message: expect.stringContaining('learningRate'),
    });
    await expect(
      readConfigFile(await write('strategy: { kind: fsdp, shardingStrategy: HYBRID_SHARD }\nname: x\n')),
    ).rejects.toMatchObject({ code: 'invalid-config', message: expect.stringContaining('strategy.deviceMesh') });
  });

  it.each(['', '\n# only a comment\n', '---\n'])(
    'that is empty is refused, with what to write instead: %j',
    async (text) => {
      await expect(readConfigFile(await write(text))).rejects.toMatchObject({
        code: 'invalid-config',
        message: expect.stringMatching(/config.yaml is empty. Write \{\} for a run that has every default./),
      });
    },
  );

  it('with a tag that means nothing is refused in our words, by its line', async () => {
    await expect(readConfigFile(await write('name: a\ntrainer: !fast { steps: 3 }\n'))).rejects.toMatchObject({
      code: 'invalid-config',
      message: expect.stringMatching(
        /config.yaml line 2 has the tag !fast, which means nothing in a config: leave it out/,
      ),
    });
    expect(await readConfigFile(await write('name: !!str 7\n'))).toMatchObject({ name: '7' });
  });

  it('that means harm by its aliases is refused', async () => {
    const bomb = [
      'a: &a [x, x, x, x, x, x, x, x, x]',
      ...'bcdefgh'.split('').map((key, i) => `${key}: &${key} [${Array(9).fill(`*${'abcdefg'[i]}`)}]`),
    ].join('\n');
    await expect(readConfigFile(await write(bomb))).rejects.toMatchObject({ code: 'invalid-config' });
  });
});
