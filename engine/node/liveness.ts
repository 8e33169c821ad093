import { readFileSync } from 'node:fs';

/**
 * When the process started, in clock ticks since the machine booted; null when there is none, or only a zombie of it.
 * A pid alone names no process for long, since the system gives it out again; pid and start time do.
 */
export function processStartTime(pid: number): number | null {
  let stat: string;
  try {
    stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ESRCH') return null;
    throw error;
  }
  // The second field is the program's name in brackets, which may hold spaces and brackets; the state is the third.
  const [state, ...fields] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return state === 'Z' || state === 'X' ? null : Number(fields[18]);
}

/** Whether the process that had this pid and start time still runs. */
export function isSameProcess(pid: number, startTime: number): boolean {
  return processStartTime(pid) === startTime;
}
