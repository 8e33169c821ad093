/** Bytes as every command prints them: MiB, two decimals below 100. */
export function mib(bytes: number): string {
  const value = bytes / 2 ** 20;
  return `${value.toLocaleString('en', { minimumFractionDigits: value < 100 ? 2 : 0, maximumFractionDigits: value < 100 ? 2 : 0 })} MiB`;
}
