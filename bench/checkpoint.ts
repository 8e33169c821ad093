import { mkdtemp, readdir, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { CheckpointKind } from '../engine/checkpoint/stored-checkpoint.ts';
import { parseConfig } from '../engine/config.ts';
import { buildModel } from '../engine/model/build-model.ts';
import { checkpointName } from '../engine/node/checkpoint-list.ts';
import { checkpointsFolder } from '../engine/node/checkpoint-store.ts';
import { CheckpointProcess } from './checkpoint-process.ts';
import { type CheckpointRow, checkpointLines } from './checkpoint-table.ts';
import type { WorkJob } from './checkpoint-work.ts';
import { optionsOf } from './options.ts';
import { askBeside, torchBeside } from './torch-parts.ts';

const ROUNDS = 3;
const KINDS: readonly CheckpointKind[] = ['full', 'sharded', 'safetensors'];

/**
 * Saving and loading a checkpoint of the FSDP guide's model, or of one with fewer layers, with Adam's state: in GB/s beside
 * a plain write, read and copy of the same bytes and torch's saving and loading of the same state, each thing in processes
 * of its own, ranks at once, in turns. Beside it how far each process's memory grew at most. Arguments: --layers N (32 are the guide's, 12.1 GB; 10 if left out, 4.3 GB),
 * --ranks N (2), --rounds N (3), --folder DIR, on the disk to be measured, --rows TEXT,… (rows whose names have one of
 * these, and the saves that they need), --sparse: of zeros, which are not written to the disk, to learn the memory alone. Each
 * row is said to stderr as it is measured.
 */
export async function run(args: readonly string[]): Promise<void> {
  const option = optionsOf(args);
  const layers = Number(option('layers', '10'));
  const model = { kind: 'demo-transformer', vocabSize: 33278, ninp: 1024, nhead: 64, nhid: 4096, nlayers: layers };
  const folder = await mkdtemp(path.join(option('folder', tmpdir()), 'bench-checkpoint-'));
  const wanted = option('rows', '').split(',');
  const bench = new CheckpointBench(model, folder, Number(option('ranks', '2')), wanted, args.includes('--sparse'));
  try {
    for (let round = 0; round < Number(option('rounds', String(ROUNDS))); round++) await bench.round();
    bench.print();
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

interface Task {
  readonly name: string;
  readonly job: Pick<WorkJob, 'action' | 'path'> & Partial<Pick<WorkJob, 'to' | 'kind'>>;
  readonly ranks: number;
  /** Whose bytes count. */
  readonly measured: string;
}

class CheckpointBench {
  private readonly rows = new Map<string, CheckpointRow>();

  constructor(
    private readonly model: object,
    private readonly folder: string,
    private readonly ranks: number,
    private readonly wanted: readonly string[],
    private readonly sparse: boolean,
  ) {}

  async round(): Promise<void> {
    const { ranks, folder } = this;
    const saved = (kind: CheckpointKind) => path.join(checkpointsFolder(folder), checkpointName(1, kind));
    const [full, sharded, weights, copied] = [
      saved('full'),
      saved('sharded'),
      saved('safetensors'),
      path.join(folder, 'copy'),
    ];
    const save = (kind: CheckpointKind, by: number): Task => ({
      name: `save ${kind} by ${by === 1 ? 'one rank' : `${by} ranks`}`,
      ...{ job: { action: 'save', kind, path: folder }, ranks: by, measured: saved(kind) },
    });
    const load = (kind: CheckpointKind, by: number): Task => ({
      name: `load ${kind} by ${by === 1 ? 'one rank' : `${by} ranks`}`,
      ...{ job: { action: 'load', path: saved(kind) }, ranks: by, measured: saved(kind) },
    });
    const of = (measured: string, name: string, job: Task['job']): Task => ({ name, measured, job, ranks: 1 });
    const convert = (from: CheckpointKind) =>
      KINDS.map((kind) => of(copied, `${from} to ${kind}`, { action: 'convert', path: saved(from), to: copied, kind }));
    await this.tasks(full, save('full', 1), [
      of(full, 'plain write, synced', { action: 'write', path: full, to: copied }),
      of(full, 'plain copy, synced', { action: 'copy', path: full, to: copied }),
      of(full, 'plain read', { action: 'read', path: full }),
      of(full, 'verify full', { action: 'verify', path: full }),
      load('full', 1),
      load('full', ranks),
      of(full, 'inspect full', { action: 'inspect', path: full }),
      ...convert('full'),
    ]);
    await this.tasks(full, save('full', ranks), []);
    await this.tasks(sharded, save('sharded', ranks), [
      of(sharded, 'verify sharded', { action: 'verify', path: sharded }),
      load('sharded', ranks),
      ...convert('sharded'),
      of(sharded, 'sharded as .tar', { action: 'archive', path: sharded }),
      of(sharded, 'sharded as full', { action: 'download', path: sharded }),
      of(sharded, 'upload of a .tar', { action: 'import', path: sharded, to: copied }),
    ]);
    await this.tasks(weights, save('safetensors', 1), [load('safetensors', 1), ...convert('safetensors')]);
    if (this.sparse) return;
    await this.torch('file', 'torch.save, synced', 'torch.load', 1, copied);
    await this.torch('folder', `DCP save by ${ranks} ranks`, `DCP load by ${ranks} ranks`, ranks, copied);
  }

  print(): void {
    for (const line of checkpointLines(this.rows)) console.log(line);
  }

  /** A save, then what needs it; nothing where none of it is wanted. What was saved goes at the end. */
  private async tasks(saved: string, save: Task, others: readonly Task[]): Promise<void> {
    const wanted = others.filter((task) => this.wants(task));
    if (wanted.length === 0 && !this.wants(save)) return;
    await this.task(save);
    for (const task of wanted) {
      await this.task(task);
      await remove(task.job.to);
    }
    await remove(saved);
  }

  /** Torch's own, of tensors in host memory. */
  private async torch(ask: 'file' | 'folder', saving: string, loading: string, ranks: number, to: string) {
    if (![saving, loading].some((name) => this.wants({ name }))) return;
    const torch = await torchBeside({ gpu: false, ...(ranks > 1 && { ranks }) });
    const shapes = buildModel(parseConfig({ model: this.model }).model, null).parameters.map(({ shape }) => shape);
    for (const [name, action] of [
      [saving, 'save'],
      [loading, 'load'],
    ] as const) {
      const answer = await askBeside(torch, { ask, action, shapes, path: to });
      if (answer) this.add(name, await bytesOf(to), answer.ms[0], null);
    }
    torch?.close();
    await remove(to);
  }

  private wants({ name }: Pick<Task, 'name'>): boolean {
    return this.wanted.some((text) => name.includes(text));
  }

  private async task({ name, measured, job, ranks }: Task): Promise<void> {
    const whole = { ...({ to: '', kind: 'full', model: this.model, ranks, sparse: this.sparse } as const), ...job };
    const started = await Promise.all(
      Array.from({ length: ranks }, (_, rank) => CheckpointProcess.start({ ...whole, rank })),
    );
    const began = performance.now();
    const results = await Promise.all(started.map((each) => each.go()));
    const ms = performance.now() - began;
    this.add(name, await bytesOf(measured), ms, Math.max(...results.map(({ growthBytes }) => growthBytes)));
  }

  private add(name: string, bytes: number, ms: number, growthBytes: number | null): void {
    const row = this.rows.get(name) ?? { bytes, ms: [], growthBytes };
    const grew = growthBytes === null ? null : Math.max(row.growthBytes ?? 0, growthBytes);
    this.rows.set(name, { bytes, ms: [...row.ms, ms], growthBytes: grew });
    console.error(`${name}: ${(bytes / 1e6 / ms).toFixed(2)} GB/s`);
  }
}

/** With the digests beside it. */
async function remove(saved: string | undefined): Promise<void> {
  for (const each of saved ? [saved, `${saved}.sha256`] : []) await rm(each, { recursive: true, force: true });
}

async function bytesOf(measured: string): Promise<number> {
  const info = await stat(measured);
  if (!info.isDirectory()) return info.size;
  const names = await readdir(measured);
  const sizes = await Promise.all(names.map(async (name) => (await stat(path.join(measured, name))).size));
  return sizes.reduce((sum, size) => sum + size, 0);
}
