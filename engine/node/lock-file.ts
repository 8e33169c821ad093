import { randomBytes } from 'node:crypto';
import { readFile, readlink, rename, symlink, unlink } from 'node:fs/promises';
import { errorCode } from './errno.ts';

/**
 * A lock between processes of one machine. It is a symbolic link that leads nowhere: its target text is the owner,
 * "pid startTicks nonce". One system call makes it, whole or not at all, and refuses if it is there; a file made with
 * O_EXCL would be empty for a moment, and for good if its maker died then.
 */
export interface Lock {
  release(): Promise<void>;
}

/** The holder of a lock that could not be had. */
export interface LockOwner {
  readonly pid: number;
}

/**
 * Takes the lock at `path`, or says who has it. A lock whose owner is no longer alive (by pid and start time, so that a
 * new process under an old pid does not count) is broken. Never waits. Rejects with the file system's own errors.
 *
 * In the moment in which several processes break one dead lock, two may come to hold it (see `removeIfStill`): use it
 * for work that is wasteful to do twice, not wrong.
 */
export async function tryLock(path: string): Promise<Lock | LockOwner> {
  const own = `${process.pid} ${await startTicks(process.pid)} ${randomBytes(6).toString('hex')}`;
  for (;;) {
    try {
      await symlink(own, path);
      return { release: () => removeIfStill(path, own) };
    } catch (error) {
      if (errorCode(error) !== 'EEXIST') throw error;
    }
    const owner = await readOwner(path);
    if (owner === null) continue; // released in between
    const [pid, ticks] = owner.split(' ');
    if (ticks !== undefined && (await startTicks(Number(pid))) === ticks) return { pid: Number(pid) };
    await removeIfStill(path, owner);
  }
}

/**
 * Removes the lock if `owner` still has it. Another process may have done so and taken it since we looked, so what we
 * took away is looked at again and, if it was not meant, put back; in between a third may have taken the lock.
 */
async function removeIfStill(path: string, owner: string): Promise<void> {
  const aside = `${path}.${randomBytes(6).toString('hex')}`;
  try {
    await rename(path, aside);
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return;
    throw error;
  }
  const taken = await readlink(aside);
  if (taken !== owner) {
    await symlink(taken, path).catch((error: unknown) => {
      if (errorCode(error) !== 'EEXIST') throw error;
    });
  }
  await unlink(aside);
}

async function readOwner(path: string): Promise<string | null> {
  try {
    return await readlink(path);
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return null;
    throw error;
  }
}

/** When a process started, in clock ticks since boot, from /proc; null if there is none or it has ended. */
async function startTicks(pid: number): Promise<string | null> {
  let stat: string;
  try {
    stat = await readFile(`/proc/${pid}/stat`, 'utf8');
  } catch (error) {
    if (errorCode(error) === 'ENOENT' || errorCode(error) === 'ESRCH') return null;
    throw error;
  }
  // "pid (name) state …": the name may hold spaces and brackets. State is field 3 of the line, start time field 22.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return fields[0] === 'Z' || fields[0] === 'X' ? null : fields[19];
}
