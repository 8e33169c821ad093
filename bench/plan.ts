import { parseConfig } from '../engine/config.ts';
import { buildModel } from '../engine/model/build-model.ts';
import { compileRun } from '../engine/schedule/compile.ts';
import { planExperiment } from '../engine/schedule/plan.ts';
import { builtInProfiles } from '../engine/schedule/profile.ts';
import { line, measure } from './measure.ts';

/** The model of Lightning Fabric's FSDP guide: 1.009 billion parameters. */
const guide = { kind: 'demo-transformer', vocabSize: 33278, ninp: 1024, nhead: 64, nhid: 4096, nlayers: 32 };
const RUNS = 9;

/** Times the plan of the guide's model under each strategy, as the form asks for it at each change. */
export async function run(): Promise<void> {
  for (const strategy of ['ddp', 'fsdp'] as const) {
    const config = parseConfig({ model: guide, devices: 2, strategy });
    const profile = builtInProfiles.h200;
    const times = await measure(() => planExperiment(config, profile), RUNS);
    const shapes = [{ batch: 1, tokens: config.data.kind === 'batches' ? 1 : config.data.blockSize }];
    const compiled = compileRun({ config, model: buildModel(config.model, null), shapes, rank: 0, profile });
    const { steps, tensors } = compiled.steps[0].schedule;
    const reservedMiB = Math.ceil(compiled.memory.reservedBytes / 2 ** 20);
    console.log(line(`plan, 1.009 B parameters, ${strategy}`, times));
    console.log(`  ${steps.length} steps, ${tensors.length} tensors; ${reservedMiB} MiB reserved per rank`);
  }
}
