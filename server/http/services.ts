import type { DataFolder } from '../data-folder.ts';
import type { Reserve } from '../reserve.ts';
import type { RunStore } from '../runs/run-store.ts';
import type { AdapterList } from '../scheduler/adapter-list.ts';
import type { IdleCalibration } from '../scheduler/idle-calibration.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';

/** What the routes work with. */
export interface Services {
  readonly store: RunStore;
  readonly scheduler: Scheduler;
  readonly calibration: IdleCalibration;
  readonly adapters: AdapterList;
  readonly folder: DataFolder;
  readonly reserve: Reserve;
}
