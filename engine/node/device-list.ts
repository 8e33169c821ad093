import type { AdapterEntry } from './adapters.ts';

/** The features that training can make use of; the others are about textures. */
const TRAINING_FEATURES = [
  'shader-f16',
  'subgroups',
  'subgroup-size-control',
  'chromium-experimental-subgroup-matrix',
  'timestamp-query',
];

/** What `devices` prints for a person: each adapter on a line, and under it what it offers to training. */
export function deviceTable(entries: readonly AdapterEntry[]): string {
  const rows = [
    ['ID', 'NAME', 'KIND', 'MEMORY', 'DRIVER'],
    ...entries.map((entry) => [
      entry.id,
      entry.name,
      entry.software ? 'software' : 'GPU',
      size(entry.deviceMemoryBytes),
      entry.driver,
    ]),
  ];
  const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => row[column].length)));
  const line = (row: string[]) =>
    row
      .map((cell, column) => cell.padEnd(widths[column]))
      .join('  ')
      .trimEnd();
  const indent = ' '.repeat(widths[0] + 2);
  return [
    line(rows[0]),
    ...entries.flatMap((entry, index) => [line(rows[index + 1]), ...details(entry).map((text) => indent + text)]),
  ].join('\n');
}

/** What `devices --json` prints: the entries themselves, with every feature and limit. */
export function deviceJson(entries: readonly AdapterEntry[]): string {
  return JSON.stringify(entries, null, 2);
}

function details({
  features,
  limits,
  subgroupMinSize,
  subgroupMaxSize,
  subgroupMatrixConfigs,
  ...entry
}: AdapterEntry) {
  const offered = TRAINING_FEATURES.filter((feature) => features.includes(feature));
  const tiles = subgroupMatrixConfigs.map(
    ({ componentType, resultComponentType, M, N, K }) => `${componentType}->${resultComponentType} ${M}x${N}x${K}`,
  );
  const subgroups = subgroupMinSize === subgroupMaxSize ? subgroupMaxSize : `${subgroupMinSize} to ${subgroupMaxSize}`;
  return [
    `features: ${offered.join(', ') || 'none of those that training uses'}`,
    `limits: buffer ${size(limits.maxBufferSize)}, binding ${size(limits.maxStorageBufferBindingSize)}, ` +
      `${limits.maxStorageBuffersPerShaderStage} storage buffers, ` +
      `workgroup ${limits.maxComputeInvocationsPerWorkgroup} threads and ${size(limits.maxComputeWorkgroupStorageSize)}, ` +
      `subgroup ${subgroups}`,
    ...(tiles.length > 0 ? [`matrix tiles: ${tiles.join(', ')}`] : []),
    `uploads go through ${entry.uploadStaging === 'device' && !entry.software ? 'GPU' : 'host'} memory`,
  ];
}

/** Bytes in the largest binary unit that leaves a number of at least 1. */
function size(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = bytes < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));
  return `${Number((bytes / 1024 ** power).toFixed(1))} ${units[power]}`;
}
