import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { type ByteSource, bytesSource } from './byte-source.ts';
import { type ConversionTarget, convertCheckpoint } from './convert-checkpoint.ts';
import { elementCount } from './dtype.ts';
import { memorySink } from './fixtures/memory-sink.ts';
import { openCheckpoint } from './open-checkpoint.ts';
import { toPlain } from './python-value.ts';
import { isStoredTensor, type StoredCheckpoint } from './stored-checkpoint.ts';
import { openOptimizer } from './stored-optimizer.ts';
import { tensorToWrite, writeTorchFile } from './torch-file-writer.ts';

const REFERENCE = new URL('../testdata/demo-transformer/', import.meta.url);

function openReal(name: string): Promise<StoredCheckpoint> {
  const at = new URL(name, REFERENCE);
  if (!/dcp|sharded/.test(name)) return openCheckpoint({ file: bytesSource(name, readFileSync(at)) });
  const files = readdirSync(at).map(
    (file) => [file, bytesSource(file, readFileSync(`${at.pathname}/${file}`))] as const,
  );
  return openCheckpoint({ folder: name, files: new Map(files) });
}

/** Converts and opens the result. */
async function convert(from: StoredCheckpoint, kind: ConversionTarget['kind'], ranks = 3) {
  if (kind !== 'sharded') {
    const sink = memorySink();
    const { dropped } = await convertCheckpoint(from, { kind, sink });
    return { to: await openCheckpoint({ file: bytesSource(`to.${kind}`, sink.bytes()) }), dropped };
  }
  const files = new Map<string, ByteSource>();
  const { dropped } = await convertCheckpoint(from, {
    kind,
    ranks,
    saveId: 'one',
    file: async (name, write) => {
      const sink = memorySink();
      await write(sink);
      files.set(name, bytesSource(name, sink.bytes()));
    },
  });
  return { to: await openCheckpoint({ folder: 'to', files }), dropped };
}

/** vitest compares arrays element by element, which takes seconds. */
const digest = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

/** Everything in a checkpoint as plain values, elements as a digest. */
async function spellOut(checkpoint: StoredCheckpoint, withOptimizer: boolean): Promise<unknown> {
  const model = new Map<string, unknown>();
  for (const [name, { dtype, shape, readBytes }] of checkpoint.model) {
    model.set(name, [dtype, shape, digest(await readBytes(0, elementCount(shape)))]);
  }
  const optimizer = withOptimizer ? await openOptimizer(checkpoint) : null;
  const state = new Map<string, unknown>();
  for (const [name, parts] of optimizer?.content.state ?? []) {
    for (const [part, value] of parts) {
      const tensor = isStoredTensor(value) ? digest(await value.readBytes(0, elementCount(value.shape))) : value;
      state.set(`${name} ${part}`, tensor);
    }
  }
  const groups = optimizer?.groups.map(({ stored }) => stored);
  return { model, state, groups, rest: toPlain(checkpoint.rest) };
}

const KINDS = ['full', 'sharded', 'safetensors'] as const;

describe('every kind into every kind', () => {
  test.each(KINDS.flatMap((first) => KINDS.map((second) => [first, second] as const)))(
    '%s, then %s: nothing changes but what the form cannot hold',
    async (first, second) => {
      const source = await openReal('fabric_single_step5.ckpt');
      const one = await convert(source, first);
      const two = await convert(one.to, second, 8);
      const weightsOnly = first === 'safetensors' || second === 'safetensors';
      expect([one.to.kind, two.to.kind]).toEqual([first, second]);
      const was = (await spellOut(source, !weightsOnly)) as object;
      expect(await spellOut(two.to, true)).toEqual({ ...was, ...(weightsOnly ? { groups: undefined } : {}) });
      expect(one.dropped).toEqual(first === 'safetensors' ? ['optimizer'] : []);
      await two.to.verify();
    },
  );

  test('9.6: converted twice, the bytes are the same', async () => {
    const bytes = async (from: StoredCheckpoint) => {
      const sink = memorySink();
      await convertCheckpoint(from, { kind: 'full', sink });
      return sink.bytes();
    };
    const once = await bytes(await openReal('dcp_fsdp1_ws2'));
    const twice = await bytes(await openCheckpoint({ file: bytesSource('once', once) }));
    expect(digest(twice)).toBe(digest(once));
  });
});

describe('what the forms differ in', () => {
  const values = new Uint8Array(Float32Array.of(1, 2, 3, 4).buffer);
  async function made(extra: [string, string | number][] = []): Promise<StoredCheckpoint> {
    const tied = tensorToWrite('bfloat16', [4, 2], () => [values]);
    const model = new Map([
      ['wte', tied],
      ['ln', tensorToWrite('int64', [2], () => [values])],
      ['head', tied],
    ]);
    const sink = memorySink();
    await writeTorchFile(new Map<string, string | number | typeof model>([['model', model], ...extra]), sink);
    return openCheckpoint({ file: bytesSource('made', sink.bytes()) });
  }

  test.each(KINDS)('names that share a tensor, and every dtype, survive %s', async (kind) => {
    const { to } = await convert(await made(), kind);
    expect([...to.model.keys()].toSorted()).toEqual(['head', 'ln', 'wte']);
    expect(to.model.get('head')).toBe(to.model.get('wte'));
    expect(to.model.get('wte')).toMatchObject({ dtype: 'bfloat16', shape: [4, 2] });
    expect(await to.model.get('wte')!.readBytes(2, 3)).toEqual(values.slice(4, 10));
    expect(to.model.get('ln')!.dtype).toBe('int64');
  });

  test('a key that would be taken for the optimizer is dropped and named', async () => {
    const { dropped } = await convert(
      await made([
        ['optimizer', 'none'],
        ['note', 'x'],
      ]),
      'full',
    );
    expect(dropped).toEqual(['optimizer']);
  });

  test('a dtype that safetensors lacks is refused by name', async () => {
    const sink = memorySink();
    await writeTorchFile(new Map([['z', tensorToWrite('complex128', [2], () => [new Uint8Array(32)])]]), sink);
    const from = await openCheckpoint({ file: bytesSource('made', sink.bytes()) });
    await expect(convert(from, 'safetensors')).rejects.toThrow(/Tensor z is complex128/);
  });
});
