import type { Mailbox } from './mailbox.ts';

/**
 * Every rank's float32 numbers, in rank order, through a region of at least 4 bytes a number. All ranks give equally many,
 * and all must call.
 */
export async function exchange(mailbox: Mailbox, region: number, mine: readonly number[]): Promise<number[][]> {
  const view = (bytes: Uint8Array<ArrayBuffer>) => new DataView(bytes.buffer, bytes.byteOffset, mine.length * 4);
  await mailbox.beginWrite(region);
  const out = view(mailbox.outbox(region));
  mine.forEach((value, i) => {
    out.setFloat32(i * 4, value, true);
  });
  mailbox.publish(region);
  const all: number[][] = [];
  for (let rank = 0; rank < mailbox.worldSize; rank++) {
    if (rank === mailbox.rank) {
      all.push(mine.map(Math.fround));
      continue;
    }
    await mailbox.arrived(region, rank);
    const theirs = view(mailbox.inbox(region, rank));
    all.push(mine.map((_, i) => theirs.getFloat32(i * 4, true)));
    mailbox.consumed(region, rank);
  }
  return all;
}
