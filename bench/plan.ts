import { parseConfig } from '../engine/config.ts';
import { planExperiment } from '../engine/schedule/plan.ts';
import { builtInProfiles } from '../engine/schedule/profile.ts';
import { GUIDE_MODEL } from './guide-model.ts';
import { measure } from './measure.ts';

const fsdp = (settings: object = {}) => ({ kind: 'fsdp', ...settings });
const large = { kind: 'moby-dick', batchSize: 8, blockSize: 512 };
/** A budget that has no room for the hidden layers of large batches. */
const tight = (memoryBudgetMiB: number) => ({ devices: 1, strategy: 'ddp', data: large, memoryBudgetMiB });

/** What is planned, and the peak that PyTorch 2.11 with Fabric allocated for the same on H200s, in MiB. */
const ROWS: readonly { name: string; config: object; torchMiB: number }[] = [
  { name: 'single', config: { devices: 1, strategy: 'ddp' }, torchMiB: 19_325 },
  { name: 'DDP', config: { devices: 2, strategy: 'ddp' }, torchMiB: 23_178 },
  { name: 'NO_SHARD', config: { devices: 2, strategy: fsdp({ shardingStrategy: 'NO_SHARD' }) }, torchMiB: 19_331 },
  {
    name: 'SHARD_GRAD_OP',
    config: { devices: 2, strategy: fsdp({ shardingStrategy: 'SHARD_GRAD_OP' }) },
    torchMiB: 10_147,
  },
  { name: 'FULL_SHARD', config: { devices: 2, strategy: fsdp() }, torchMiB: 9710 },
  { name: 'FULL_SHARD, offload', config: { devices: 2, strategy: fsdp({ cpuOffload: true }) }, torchMiB: 2793 },
  { name: 'offload, one device', config: { devices: 1, strategy: fsdp({ cpuOffload: true }) }, torchMiB: 8041 },
  { name: 'single, 8 x 512', config: { devices: 1, strategy: 'ddp', data: large }, torchMiB: 36_515 },
  { name: '  hidden layers again', config: tight(22_000), torchMiB: 36_515 },
  {
    name: 'single, 8 x 512, 16-mixed',
    config: { devices: 1, strategy: 'ddp', data: large, precision: '16-mixed' },
    torchMiB: 27_864,
  },
  { name: '  hidden layers again', config: { ...tight(17_500), precision: '16-mixed' }, torchMiB: 27_864 },
];
const RUNS = 5;

/**
 * Plans the guide's model under each strategy, as the form asks for it at each change: the time that takes, what is reserved
 * beside PyTorch's peak, most live, and the estimate by the built-in rates of an H200, one rank on each.
 */
export async function run(): Promise<void> {
  console.log(`${'1.009 B parameters'.padEnd(27)} plan ms  reserved MiB  live MiB   torch  ratio  estimate ms`);
  for (const { name, config, torchMiB } of ROWS) {
    const parsed = parseConfig({ model: { ...GUIDE_MODEL, dropout: 0.2 }, ...config });
    const plan = () => planExperiment(parsed, builtInProfiles.h200);
    const { medianMs } = await measure(plan, RUNS);
    const { peakBytes, liveBytes, estimateMs } = plan();
    const [reserved, live] = [peakBytes, liveBytes].map((bytes) => bytes / 2 ** 20);
    const cells = [medianMs.toFixed(0).padStart(7), reserved.toFixed(0).padStart(13), live.toFixed(0).padStart(9)];
    const beside = [String(torchMiB).padStart(7), (reserved / torchMiB).toFixed(3).padStart(6)];
    console.log([name.padEnd(27), ...cells, ...beside, (estimateMs ?? 0).toFixed(0).padStart(12)].join(' '));
  }
}
