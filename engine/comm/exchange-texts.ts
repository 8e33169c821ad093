import { exchange } from './exchange.ts';
import type { Mailbox } from './mailbox.ts';

/** The regions that texts travel through: their lengths (at least 8 bytes), and the texts a piece at a time. */
export interface TextRegions {
  readonly sizes: number;
  readonly pieces: number;
}

/** Every rank's text, in rank order. All ranks must call; a text may be longer than the region. */
export async function exchangeTexts(
  mailbox: Mailbox,
  { sizes, pieces }: TextRegions,
  mine: string,
): Promise<readonly string[]> {
  if (mailbox.worldSize === 1) return [mine];
  const own = new TextEncoder().encode(mine);
  // A length is two numbers that float32 holds exactly.
  const lengths = await exchange(mailbox, sizes, [Math.floor(own.length / 2 ** 20), own.length % 2 ** 20]);
  const texts: string[] = [];
  for (const [rank, [whole, rest]] of lengths.entries()) {
    const bytes = whole * 2 ** 20 + rest;
    if (rank === mailbox.rank) {
      await give(mailbox, pieces, own);
      texts.push(mine);
    } else texts.push(new TextDecoder().decode(await take(mailbox, pieces, rank, bytes)));
  }
  return texts;
}

async function give(mailbox: Mailbox, region: number, data: Uint8Array): Promise<void> {
  const most = mailbox.regions[region].bytes;
  for (let at = 0; at < data.length; at += most) {
    await mailbox.beginWrite(region);
    mailbox.outbox(region).set(data.subarray(at, at + most));
    mailbox.publish(region);
  }
}

async function take(mailbox: Mailbox, region: number, peer: number, bytes: number): Promise<Uint8Array<ArrayBuffer>> {
  const most = mailbox.regions[region].bytes;
  const data = new Uint8Array(bytes);
  for (let at = 0; at < bytes; at += most) {
    await mailbox.arrived(region, peer);
    data.set(mailbox.inbox(region, peer).subarray(0, Math.min(most, bytes - at)), at);
    mailbox.consumed(region, peer);
  }
  return data;
}
