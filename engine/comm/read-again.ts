import type { Mailbox } from './mailbox.ts';

/** Counts further reads of a peer's publication that need no bytes: its owner waits for as many as were agreed. */
export async function readAgain(mailbox: Mailbox, region: number, peer: number, times: number): Promise<void> {
  for (let i = 0; i < times; i++) {
    await mailbox.arrived(region, peer);
    mailbox.consumed(region, peer);
  }
}
