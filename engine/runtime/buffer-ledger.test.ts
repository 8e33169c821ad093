import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { BufferLedger } from './buffer-ledger.ts';

const [MAP_READ, MAP_WRITE, COPY_SRC, COPY_DST, STORAGE] = [1, 2, 4, 8, 128];
beforeEach(() => void vi.stubGlobal('GPUBufferUsage', { MAP_READ, MAP_WRITE, COPY_SRC, COPY_DST, STORAGE }));
afterEach(() => void vi.unstubAllGlobals());

/** A device that refuses buffers of some usages, by validation or for want of memory, and says which of 64 bytes it was asked for. */
function deviceThat(refuses: (usage: number, bytes: number) => 'validation' | 'out-of-memory' | null) {
  const asked: number[] = [];
  const scopes: { kind: string; error: { message: string } | null }[] = [];
  const device = {
    pushErrorScope: (kind: string) => scopes.push({ kind, error: null }),
    popErrorScope: async () => scopes.pop()!.error,
    createBuffer: ({ usage, size }: { usage: number; size: number }) => {
      if (size === 64) asked.push(usage);
      const kind = refuses(usage, size);
      const scope = scopes.findLast((s) => s.kind === kind);
      if (scope) scope.error = { message: `${kind} of ${usage}` };
      return { usage, destroy: () => undefined };
    },
    queue: { submit: () => undefined, onSubmittedWorkDone: async () => undefined },
  };
  return { asked, ledger: new BufferLedger(device as unknown as GPUDevice) };
}

test('a buffer for uploads lies on the device where nothing validates', async () => {
  const { asked, ledger } = deviceThat(() => null);
  expect((await ledger.createUpload('slot', 64)).usage).toBe(MAP_WRITE | COPY_SRC | STORAGE);
  expect(asked).toEqual([MAP_WRITE | COPY_SRC | STORAGE]);
  expect([ledger.currentBytes, ledger.allocRetries, ledger.ooms]).toEqual([64, 0, 0]);
});

test.each([
  ['validation refuses it', (usage: number) => (usage & STORAGE ? ('validation' as const) : null)],
  [
    'that memory is short',
    (usage: number, bytes: number) => (usage & STORAGE && bytes === 64 ? ('out-of-memory' as const) : null),
  ],
])('and lies where it did before where %s', async (_, refuses) => {
  const { ledger } = deviceThat(refuses);
  expect((await ledger.createUpload('slot', 64)).usage).toBe(MAP_WRITE | COPY_SRC);
  expect([ledger.currentBytes, ledger.allocRetries, ledger.ooms]).toEqual([64, 0, 0]);
});

test('what no memory has room for is asked for once more, then refused by name', async () => {
  const { ledger } = deviceThat((_, bytes) => (bytes === 64 ? 'out-of-memory' : null));
  await expect(ledger.createUpload('upload slab 3 of rank 0', 64)).rejects.toMatchObject({
    code: 'out-of-memory',
    message: expect.stringContaining('no room for upload slab 3 of rank 0'),
  });
  expect([ledger.currentBytes, ledger.allocRetries, ledger.ooms]).toEqual([0, 1, 1]);
});

test('what was short of memory lies where it may at worst once memory was given back', async () => {
  let refusals = 2;
  const { asked, ledger } = deviceThat((_, bytes) => (bytes === 64 && refusals-- > 0 ? 'out-of-memory' : null));
  expect((await ledger.createUpload('slot', 64)).usage).toBe(MAP_WRITE | COPY_SRC);
  expect(asked).toEqual([MAP_WRITE | COPY_SRC | STORAGE, MAP_WRITE | COPY_SRC, MAP_WRITE | COPY_SRC]);
  expect([ledger.currentBytes, ledger.allocRetries, ledger.ooms]).toEqual([64, 1, 0]);
});

test('when all is given back, nothing is held on the device or on the host', async () => {
  const { ledger } = deviceThat(() => null);
  await ledger.create('slab', 32, STORAGE);
  expect((await ledger.createOnHost('moments', 48)).usage).toBe(MAP_READ | COPY_DST);
  expect([ledger.currentBytes, ledger.hostBytes]).toEqual([32, 48]);
  ledger.destroyAll();
  expect([ledger.currentBytes, ledger.hostBytes, ledger.peakBytes]).toEqual([0, 0, 32]);
});
