/** The code of an operating system's error (`ENOENT`), or undefined for any other. */
export function errorCode(error: unknown): string | undefined {
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;
}

/** What an operating system's code says of a folder that one wants to write to. */
export function whyNot(code: string | undefined): string | undefined {
  if (code === 'EROFS' || code === 'EACCES' || code === 'EPERM') return 'it is read-only for this user';
  if (code === 'ENOSPC' || code === 'EDQUOT') return 'its disk is full';
  return undefined;
}
