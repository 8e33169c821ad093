import { mkdtemp, readdir, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { beginCheckpointFolder, finishCheckpointFolder } from '../engine/node/checkpoint-folder.ts';
import { noiseContent } from './checkpoint-noise.ts';
import { CheckpointProcess } from './checkpoint-process.ts';
import type { WorkJob, WorkResult } from './checkpoint-work.ts';
import { timesOf } from './measure.ts';

const ROUNDS = 3;

/**
 * Saving and loading a checkpoint of the FSDP guide's model, or of one with fewer layers, with Adam's state: in GB/s beside
 * a plain write, read and copy of the same bytes, each thing in processes of its own, ranks at once, in turns. Beside it
 * how far each process's memory grew at most. Arguments: --layers N (32 are the guide's, 12.1 GB; 10 if left out, 4.3 GB),
 * --ranks N (2), --rounds N (3), --folder DIR, on the disk to be measured, --rows TEXT,… (rows whose names have one of
 * these; saves are made all the same).
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = (name: string, otherwise: string) => args[args.indexOf(`--${name}`) + 1 || args.length] ?? otherwise;
  const layers = Number(option('layers', '10'));
  const model = { kind: 'demo-transformer', vocabSize: 33278, ninp: 1024, nhead: 64, nhid: 4096, nlayers: layers };
  const folder = await mkdtemp(path.join(option('folder', tmpdir()), 'bench-checkpoint-'));
  const wanted = option('rows', '').split(',');
  const bench = new CheckpointBench(model, folder, Number(option('ranks', '2')), wanted);
  try {
    for (let round = 0; round < Number(option('rounds', String(ROUNDS))); round++) await bench.round();
    bench.print();
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

interface Row {
  readonly bytes: number;
  readonly ms: number[];
  growthBytes: number;
}

class CheckpointBench {
  private readonly rows = new Map<string, Row>();

  constructor(
    private readonly model: object,
    private readonly folder: string,
    private readonly ranks: number,
    private readonly wanted: readonly string[],
  ) {}

  private wants(name: string): boolean {
    return this.wanted.some((text) => name.includes(text));
  }

  async round(): Promise<void> {
    const [full, weights, sharded, copied, tar] = [
      'full.ckpt',
      'weights.safetensors',
      'sharded',
      'copy',
      'imported',
    ].map((name) => path.join(this.folder, name));
    const all = Array.from({ length: this.ranks }, (_, rank) => rank);
    const one = [0];
    const remove = async (...paths: string[]) => {
      for (const each of paths) await rm(each, { recursive: true, force: true });
    };
    await this.row('save full, rank 0', full, one, { action: 'save full', path: full });
    const { size } = await stat(full);
    await this.row('plain write, synced', copied, one, { action: 'write', path: copied, bytes: size });
    await remove(copied);
    await this.row('plain copy, synced', full, one, { action: 'copy', path: full, to: copied });
    await remove(copied);
    await this.row('plain read', full, one, { action: 'read', path: full });
    await this.row('verify full', full, one, { action: 'verify', path: full });
    await this.row('load full, one rank', full, one, { action: 'load', path: full });
    await this.row(`load full, ${this.ranks} ranks`, full, all, { action: 'load', path: full });
    await this.row('inspect full', full, one, { action: 'inspect', path: full });
    await this.row('full to safetensors', copied, one, { action: 'convert', path: full, to: copied });
    await remove(full, `${full}.sha256`, copied, `${copied}.sha256`);

    await this.saveSharded(sharded, all);
    await this.row('verify sharded', sharded, one, { action: 'verify', path: sharded });
    await this.row(`load sharded, ${this.ranks} ranks`, sharded, all, { action: 'load', path: sharded });
    await this.row('sharded as .tar', sharded, one, { action: 'archive', path: sharded });
    await this.row('sharded as full', sharded, one, { action: 'download', path: sharded });
    await this.row('upload of a .tar', sharded, one, { action: 'import', path: sharded, to: this.folder });
    await remove(sharded, `${sharded}.sha256`, tar, `${tar}.sha256`);

    if (!this.wants('save safetensors, rank 0') && !this.wants('load safetensors, one rank')) return;
    await this.row('save safetensors, rank 0', weights, one, { action: 'save safetensors', path: weights });
    await this.row('load safetensors, one rank', weights, one, { action: 'load', path: weights });
    await remove(weights, `${weights}.sha256`);
  }

  print(): void {
    console.log(`${'GB/s'.padEnd(30)}   median     min     max      GB   memory grew, MiB`);
    for (const [name, { bytes, ms, growthBytes }] of this.rows) {
      const { medianMs, minMs, maxMs } = timesOf(ms);
      const rates = [medianMs, maxMs, minMs].map((each) => (bytes / 1e6 / each).toFixed(2).padStart(7));
      const grew = (growthBytes / 2 ** 20).toFixed(0).padStart(10);
      console.log(`${name.padEnd(30)}  ${rates.join(' ')} ${(bytes / 1e9).toFixed(2).padStart(7)} ${grew}`);
    }
  }

  /** Each rank writes its file, then rank 0 the folder's metadata, as `saveCheckpoint` has it. */
  private async saveSharded(sharded: string, ranks: readonly number[]): Promise<void> {
    const temporary = await beginCheckpointFolder(sharded);
    const started = await this.start(ranks, { action: 'save sharded', path: temporary });
    const content = noiseContent(this.model);
    const began = performance.now();
    const results = await Promise.all(started.map((each) => each.go()));
    const parts = results.flatMap(({ part }) => (part ? [part] : []));
    await finishCheckpointFolder(temporary, sharded, content, 'bench', parts);
    await this.add(`save sharded, ${ranks.length} ranks`, sharded, performance.now() - began, results);
  }

  private async row(
    name: string,
    measured: string,
    ranks: readonly number[],
    job: Partial<WorkJob> & Pick<WorkJob, 'action'>,
  ): Promise<void> {
    if (!job.action.startsWith('save') && !this.wants(name)) return;
    const started = await this.start(ranks, job);
    const began = performance.now();
    const results = await Promise.all(started.map((each) => each.go()));
    await this.add(name, measured, performance.now() - began, results);
  }

  private start(
    ranks: readonly number[],
    job: Partial<WorkJob> & Pick<WorkJob, 'action'>,
  ): Promise<CheckpointProcess[]> {
    const whole = { path: '', to: '', bytes: 0, model: this.model, ranks: ranks.length, ...job };
    return Promise.all(ranks.map((rank) => CheckpointProcess.start({ ...whole, rank })));
  }

  private async add(name: string, measured: string, ms: number, results: readonly WorkResult[]): Promise<void> {
    if (!this.wants(name)) return;
    const row = this.rows.get(name) ?? { bytes: await bytesOf(measured), ms: [], growthBytes: 0 };
    row.ms.push(ms);
    console.error(`${name}: ${(row.bytes / 1e6 / ms).toFixed(2)} GB/s`);
    row.growthBytes = Math.max(row.growthBytes, ...results.map(({ growthBytes }) => growthBytes));
    this.rows.set(name, row);
  }
}

async function bytesOf(measured: string): Promise<number> {
  const info = await stat(measured);
  if (!info.isDirectory()) return info.size;
  const names = await readdir(measured);
  const sizes = await Promise.all(names.map(async (name) => (await stat(path.join(measured, name))).size));
  return sizes.reduce((sum, size) => sum + size, 0);
}
