import fc from 'fast-check';
import { afterEach, describe, expect, test } from 'vitest';
import { MAX_FAILURE_BYTES } from './counted-mailbox.ts';
import type { Mailbox, RegionSpec } from './mailbox.ts';

/** Opens the mailboxes of a whole group, by rank. */
export type OpenGroup = (
  worldSize: number,
  regions: readonly RegionSpec[],
  options?: { timeoutMs?: number },
) => Promise<Mailbox[]>;

const once: RegionSpec = { name: 'gradients', bytes: 24, readsPerPublication: 1 };
const twice: RegionSpec = { name: 'shard', bytes: 16, readsPerPublication: 2 };

/** Says whether the promise is still open after every other wait that could end has ended. */
async function isOpen(promise: Promise<unknown>): Promise<boolean> {
  let settled = false;
  const note = () => {
    settled = true;
  };
  promise.then(note, note);
  await sleep(25);
  return !settled;
}

const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

async function write(mailbox: Mailbox, region: number, value: number): Promise<void> {
  await mailbox.beginWrite(region);
  mailbox.outbox(region).fill(value);
  mailbox.publish(region);
}

async function read(mailbox: Mailbox, region: number, peer: number): Promise<number[]> {
  await mailbox.arrived(region, peer);
  const values = [...new Set(mailbox.inbox(region, peer))];
  mailbox.consumed(region, peer);
  return values;
}

/** What every mailbox does, whatever carries it. */
export function describeMailbox(name: string, openGroup: OpenGroup): void {
  describe(`${name}: the mailbox`, () => {
    const open: Mailbox[] = [];
    const openAll: OpenGroup = async (...args) => {
      const group = await openGroup(...args);
      open.push(...group);
      return group;
    };
    afterEach(() => {
      for (const mailbox of open.splice(0)) mailbox.close();
    });

    test('carries a publication to every peer, and each region by itself', async () => {
      const group = await openAll(3, [once, twice]);
      await write(group[1], 0, 7);
      await write(group[2], 1, 9);
      expect(await read(group[0], 0, 1)).toEqual([7]);
      expect(await read(group[2], 0, 1)).toEqual([7]);
      expect(await read(group[0], 1, 2)).toEqual([9]);
      expect(await isOpen(group[0].arrived(0, 2).catch(() => {}))).toBe(true);
    });

    test('holds an owner back until each peer has read the agreed number of times', async () => {
      const [owner, a, b] = await openAll(3, [twice]);
      await write(owner, 0, 1);
      const again = owner.beginWrite(0);
      for (const reader of [a, a, b]) expect(await read(reader, 0, 0)).toEqual([1]);
      expect(await isOpen(again)).toBe(true);
      expect(await read(b, 0, 0)).toEqual([1]);
      await again;
      owner.outbox(0).fill(2);
      owner.publish(0);
      for (const reader of [a, b]) expect(await read(reader, 0, 0)).toEqual([2]);
    });

    test('holds a reader back until the publication that it has to read next', async () => {
      const [owner, reader] = await openAll(2, [once]);
      await write(owner, 0, 1);
      expect(await read(reader, 0, 0)).toEqual([1]);
      const next = reader.arrived(0, 0);
      expect(await isOpen(next)).toBe(true);
      await write(owner, 0, 2);
      await next;
      expect(reader.inbox(0, 0)[0]).toBe(2);
    });

    test('lets several reads be under way: each is of the publication that is its turn', async () => {
      const [owner, reader] = await openAll(2, [twice]);
      const [first, second, third] = [1, 2, 3].map(() => reader.arrived(0, 0));
      await write(owner, 0, 1);
      await Promise.all([first, second]);
      expect(await isOpen(third)).toBe(true);
      const again = owner.beginWrite(0);
      reader.consumed(0, 0);
      expect(await isOpen(again)).toBe(true);
      expect(reader.inbox(0, 0)[0]).toBe(1);
      reader.consumed(0, 0);
      await again;
      owner.outbox(0).fill(2);
      owner.publish(0);
      await third;
      expect(reader.inbox(0, 0)[0]).toBe(2);
      reader.consumed(0, 0);
      expect(() => reader.consumed(0, 0)).toThrow(/without arrived/);
    });

    test('keeps views over the same bytes for its life, empty regions included', async () => {
      const [owner, reader] = await openAll(2, [{ name: 'none', bytes: 0, readsPerPublication: 1 }, once]);
      expect(owner.outbox(0).byteLength).toBe(0);
      await write(owner, 0, 0);
      expect(await read(reader, 0, 0)).toEqual([]);
      const view = new Float32Array(owner.outbox(1).buffer, owner.outbox(1).byteOffset, 6);
      await owner.beginWrite(1);
      view.fill(0.5);
      owner.publish(1);
      await reader.arrived(1, 0);
      const inbox = reader.inbox(1, 0);
      expect([...new Float32Array(inbox.buffer, inbox.byteOffset, 6)]).toEqual(Array(6).fill(0.5));
    });

    test('bounds a wait and says for whom and for what it was', async () => {
      const [owner, reader] = await openAll(2, [once], { timeoutMs: 40 });
      await expect(reader.arrived(0, 0)).rejects.toMatchObject({
        code: 'timeout',
        message: expect.stringContaining('Rank 1 waited 40 ms for rank 0 to publish gradients'),
        details: { rank: 1, peer: 0, region: 'gradients', awaited: 'publication' },
      });
      await write(owner, 0, 1);
      await expect(owner.beginWrite(0)).rejects.toMatchObject({
        code: 'timeout',
        message: expect.stringContaining('Rank 0 waited 40 ms for rank 1 to read gradients'),
        details: { rank: 0, peer: 1, region: 'gradients', awaited: 'reads' },
      });
    });

    test('ends the open and the later waits of all peers when a rank fails', async () => {
      const group = await openAll(3, [once]);
      await write(group[2], 0, 1);
      const openWait = group[0].arrived(0, 1);
      group[2].fail('the device is gone');
      const lost = { code: 'peer-lost', details: { rank: 2, message: 'the device is gone' } };
      await expect(openWait).rejects.toMatchObject(lost);
      await expect(group[1].arrived(0, 2)).rejects.toMatchObject(lost);
      await expect(group[1].beginWrite(0)).rejects.toMatchObject(lost);
    });

    test('does not blame a rank that stops because another did', async () => {
      const group = await openAll(3, [once]);
      group[2].fail('first cause');
      await expect(group[0].arrived(0, 1)).rejects.toMatchObject({ details: { rank: 2 } });
      group[0].fail('rank 2 is lost');
      await expect(group[1].arrived(0, 0)).rejects.toMatchObject({ details: { rank: 2, message: 'first cause' } });
    });

    test('cuts a long message at a whole character', async () => {
      const group = await openAll(2, [once]);
      group[0].fail(`x${'é'.repeat(MAX_FAILURE_BYTES)}`);
      const message = `x${'é'.repeat((MAX_FAILURE_BYTES - 2) / 2)}`;
      await expect(group[1].arrived(0, 0)).rejects.toMatchObject({ details: { rank: 0, message } });
    });

    test('rejects its own open waits when it closes, and can be closed twice', async () => {
      const [mailbox] = await openAll(2, [once]);
      const wait = mailbox.arrived(0, 1);
      const outcome = expect(wait).rejects.toMatchObject({ code: 'peer-lost', details: { rank: 0, closed: true } });
      mailbox.close();
      mailbox.close();
      await outcome;
      expect(() => mailbox.outbox(0)).toThrow(/after close/);
    });

    test('lets peers read what a rank published before it closed, and tells those who wait for more', async () => {
      const [owner, reader] = await openAll(2, [once]);
      await write(owner, 0, 5);
      owner.close();
      expect(await read(reader, 0, 0)).toEqual([5]);
      await expect(reader.arrived(0, 0)).rejects.toMatchObject({ code: 'peer-lost', details: { rank: 0 } });
    });

    test('refuses misuse', async () => {
      const [mailbox, peer] = await openAll(2, [once]);
      expect(() => mailbox.publish(0)).toThrow(/without beginWrite/);
      await write(mailbox, 0, 1);
      expect(() => mailbox.publish(0)).toThrow(/without beginWrite/);
      expect(() => peer.consumed(0, 0)).toThrow(/without arrived/);
      await read(peer, 0, 0);
      expect(() => peer.consumed(0, 0)).toThrow(/without arrived/);
      await peer.beginWrite(0);
      await expect(peer.beginWrite(0)).rejects.toThrow(/twice/);
      expect(() => mailbox.inbox(0, 0)).toThrow(RangeError);
      expect(() => mailbox.inbox(0, 2)).toThrow(RangeError);
      expect(() => mailbox.outbox(1)).toThrow(RangeError);
    });

    test('refuses a table with a doubled name or a count that is none', async () => {
      await expect(openAll(2, [once, once])).rejects.toThrow(/two regions/);
      await expect(openAll(2, [{ ...once, bytes: 1.5 }])).rejects.toThrow(RangeError);
      await expect(openAll(2, [{ ...once, readsPerPublication: 0 }])).rejects.toThrow(RangeError);
    });

    test('alone, waits for nobody', async () => {
      const [solo] = await openAll(1, [once]);
      for (const value of [1, 2, 3]) await write(solo, 0, value);
      expect(solo.outbox(0)[0]).toBe(3);
    });

    test('shows each peer every publication whole and in order, however the ranks interleave', async () => {
      const table = fc.array(
        fc.record({ bytes: fc.integer({ min: 0, max: 300 }), readsPerPublication: fc.integer({ min: 1, max: 3 }) }),
        { minLength: 1, maxLength: 4 },
      );
      await fc.assert(
        fc.asyncProperty(
          fc.integer({ min: 1, max: 8 }),
          table,
          fc.integer({ min: 1, max: 5 }),
          fc.integer(),
          async (worldSize, specs, publications, seed) => {
            const regions = specs.map((spec, index) => ({ name: `region ${index}`, ...spec }));
            const group = await openGroup(worldSize, regions, { timeoutMs: 10_000 });
            try {
              await exchange(group, publications, seed);
            } finally {
              for (const mailbox of group) mailbox.close();
            }
          },
        ),
        { numRuns: 25, seed: 20_261_129 },
      );
    }, 60_000);
  });
}

/** Every rank writes and reads every region as its own concurrent loop; each read checks every byte before and after a pause. */
async function exchange(group: readonly Mailbox[], publications: number, seed: number): Promise<void> {
  const loops: Promise<void>[] = [];
  let state = seed | 0;
  const pause = () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
    const kind = (state >>> 24) % 4;
    if (kind === 0) return new Promise<void>((resolve) => setTimeout(resolve, 0));
    if (kind === 1) return Promise.resolve().then(() => undefined);
    return undefined;
  };
  const stamp = (owner: number, region: number, publication: number) =>
    (owner * 89 + region * 31 + publication * 7) & 255;
  for (const mailbox of group) {
    const { rank, worldSize, regions } = mailbox;
    for (let region = 0; region < regions.length; region++) {
      loops.push(
        (async () => {
          for (let publication = 0; publication < publications; publication++) {
            await mailbox.beginWrite(region);
            const outbox = mailbox.outbox(region);
            const half = outbox.length >> 1;
            outbox.fill(stamp(rank, region, publication), 0, half);
            await pause();
            outbox.fill(stamp(rank, region, publication), half);
            mailbox.publish(region);
            await pause();
          }
          await mailbox.beginWrite(region);
        })(),
      );
      for (let peer = 0; peer < worldSize; peer++) {
        if (peer === rank) continue;
        loops.push(
          (async () => {
            const reads = publications * regions[region].readsPerPublication;
            for (let count = 0; count < reads; count++) {
              await mailbox.arrived(region, peer);
              const expected = stamp(peer, region, Math.floor(count / regions[region].readsPerPublication));
              const inbox = mailbox.inbox(region, peer);
              expect(inbox.every((byte) => byte === expected)).toBe(true);
              await pause();
              expect(inbox.every((byte) => byte === expected)).toBe(true);
              mailbox.consumed(region, peer);
            }
          })(),
        );
      }
    }
  }
  await Promise.all(loops);
}
