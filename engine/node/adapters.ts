import { fork } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { mkdir, rename, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import koffi from 'koffi';
import { StudioError } from '../errors.ts';
import { didYouMean } from '../nearest-word.ts';
import { offersTensorCores } from '../runtime/tensor-cores.ts';
import { paceDawn } from './dawn-turns.ts';
import { privateCacheFolder, unpackVulkan } from './vulkan-files.ts';
import { listPhysicalDevices, type PhysicalDevice } from './vulkan-info.ts';

/** One adapter of this machine, as plain data: it is sent to workers, stored with a run and shown in the studio. */
export interface AdapterEntry {
  /** Stable over restarts: the PCI id of a GPU, or `lavapipe` or `swiftshader`. */
  readonly id: string;
  readonly name: string;
  readonly vendor: string;
  readonly driver: string;
  readonly software: boolean;
  readonly pciId: string | null;
  /** The features and limits that a device of it can be asked for. */
  readonly features: readonly string[];
  readonly limits: Readonly<Record<string, number>>;
  readonly subgroupMinSize: number;
  readonly subgroupMaxSize: number;
  /** Tile shapes of the tensor cores: component types, and rows and columns as M, N, K. */
  readonly subgroupMatrixConfigs: readonly SubgroupMatrix[];
  /** Whether products of halves can go to tensor cores; a run still tries them first. */
  readonly tensorCores: boolean;
  readonly deviceMemoryBytes: number;
  /** Whether buffers for uploads take GPU memory (they lie in the window of it that the host sees) or host memory. */
  readonly uploadStaging: 'device' | 'host';
  /** The driver manifest that offers it. */
  readonly icdPath: string;
}

export interface SubgroupMatrix {
  readonly componentType: string;
  readonly resultComponentType: string;
  readonly M: number;
  readonly N: number;
  readonly K: number;
}

/** What listing one driver gave: its adapters, or why there are none. */
export interface DriverReport {
  readonly icdPath: string;
  readonly adapters: readonly AdapterEntry[];
  readonly problem: string | null;
}

/** How a driver's listing is bounded: GPUs of a busy machine can take seconds to start. */
const PROBE_TIMEOUT_MS = 30_000;
/** Older lavapipe miscompiles our kernels or lacks features; the bundled SwiftShader is better than it. */
const LAVAPIPE_MIN_MAJOR = 24;

const VENDORS: Readonly<Record<number, string>> = {
  4098: 'AMD',
  4203: 'Apple',
  4318: 'NVIDIA',
  5045: 'ARM',
  6880: 'Google',
  20803: 'Qualcomm',
  32902: 'Intel',
  65541: 'Mesa',
};

const INSTALL_HINT =
  'Install a Vulkan driver (NVIDIA 535 or newer with its graphics libraries, or Mesa 24 or newer: ' +
  'apt-get install mesa-vulkan-drivers), or run npm install again for the bundled software GPU. ' +
  'adapter: interpreter needs no GPU.';

/**
 * The adapters of this machine: real GPUs first, then lavapipe, then the bundled SwiftShader. Each driver is tried in a
 * short-lived process of its own, so that one that crashes or hangs costs only itself; `onProblem` hears of those.
 * Throws StudioError `no-adapter` that says what to install when there is none.
 */
export async function discoverAdapters(onProblem?: (report: DriverReport) => void): Promise<AdapterEntry[]> {
  const manifests = await driverManifests();
  const reports = await Promise.all(manifests.map(probeDriver));
  for (const report of reports) if (report.problem !== null) onProblem?.(report);
  const entries = sortAdapters(reports.flatMap((report) => report.adapters));
  if (entries.length > 0) return entries;
  const problems = reports.map(({ icdPath, problem }) => `${icdPath}: ${problem ?? 'no device'}`);
  throw new StudioError('no-adapter', `No GPU adapter works here. ${INSTALL_HINT} Tried: ${problems.join('; ')}.`, {
    problems,
  });
}

/** Real GPUs in the order of their PCI ids, then lavapipe, then SwiftShader; an id that two drivers offer, once. */
export function sortAdapters<T extends Pick<AdapterEntry, 'id' | 'software'>>(entries: readonly T[]): T[] {
  const place = ({ id, software }: T) => (software ? (id === 'swiftshader' ? 2 : 1) : 0);
  const sorted = [...entries].sort((a, b) => place(a) - place(b) || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0));
  return sorted.filter(({ id }, index) => sorted.findIndex((other) => other.id === id) === index);
}

/**
 * The adapter that `adapter:` of a config names: `auto` (the best), `software`, an id, or a name (any case; part of it
 * will do). Throws StudioError `no-adapter` that lists what there is.
 */
export function findAdapter<T extends Pick<AdapterEntry, 'id' | 'name' | 'software'>>(
  entries: readonly T[],
  wanted: string,
): T {
  const word = wanted.toLowerCase();
  const found =
    (word === 'auto' && entries[0]) ||
    (word === 'software' && entries.find((entry) => entry.software)) ||
    entries.find((entry) => entry.id === word || (word !== '' && entry.id.endsWith(`:${word}`))) ||
    entries.find((entry) => entry.name.toLowerCase() === word) ||
    (word !== '' && entries.find((entry) => entry.name.toLowerCase().includes(word)));
  if (found) return found;
  const list = entries.map(({ id, name }) => `${name} (${id})`).join(', ') || 'none';
  const known = ['auto', 'software', 'interpreter', ...entries.flatMap(({ id, name }) => [id, name])];
  const message = `adapter: nothing here is called ${wanted}. There is: ${list}${didYouMean(wanted, known) || '.'}`;
  throw new StudioError('no-adapter', message, { wanted });
}

/** The driver manifests to try: those of the environment if it names any, else the system's; the bundled one last. */
async function driverManifests(): Promise<string[]> {
  const { swiftShaderManifestPath } = await unpackVulkan();
  return [...systemManifests(), swiftShaderManifestPath];
}

function systemManifests(): string[] {
  const named = process.env.VK_DRIVER_FILES || process.env.VK_ICD_FILENAMES;
  const places = named
    ? named.split(':')
    : [
        process.env.XDG_CONFIG_HOME || join(homedir(), '.config'),
        ...(process.env.XDG_CONFIG_DIRS || '/etc/xdg').split(':'),
        '/etc',
        process.env.XDG_DATA_HOME || join(homedir(), '.local/share'),
        ...(process.env.XDG_DATA_DIRS || '/usr/local/share:/usr/share').split(':'),
        '/usr/local/nvidia/share', // where container runtimes mount NVIDIA's driver
      ].map((folder) => join(folder, 'vulkan/icd.d'));
  const manifests = places.flatMap((place) => {
    if (place.endsWith('.json')) return [place];
    try {
      return readdirSync(place)
        .filter((file) => file.endsWith('.json'))
        .sort()
        .map((file) => join(place, file));
    } catch {
      return []; // Most of the places do not exist.
    }
  });
  return [...new Set(manifests)].filter((path) => {
    try {
      const manifest = JSON.parse(readFileSync(path, 'utf8')) as { ICD?: { library_arch?: string } };
      return manifest.ICD !== undefined && manifest.ICD.library_arch !== '32';
    } catch {
      return false; // The loader skips a broken manifest too.
    }
  });
}

/** Lists one driver's adapters in a child process. */
function probeDriver(icdPath: string): Promise<DriverReport> {
  const failed = (problem: string): DriverReport => ({ icdPath, adapters: [], problem });
  return new Promise((resolve) => {
    const probe = fileURLToPath(new URL('./adapter-probe.ts', import.meta.url));
    const loader = createRequire(import.meta.url).resolve('tsx');
    const child = fork(probe, [icdPath], {
      execArgv: ['--import', pathToFileURL(loader).href],
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    });
    let said = '';
    child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      said = (said + text).slice(-2000);
    });
    let report = failed('');
    const timer = setTimeout(() => {
      report = failed(`its listing did not end within ${PROBE_TIMEOUT_MS} ms`);
      child.kill('SIGKILL');
    }, PROBE_TIMEOUT_MS);
    child.on('message', (message) => {
      report = message as DriverReport;
    });
    child.on('error', (error) => {
      clearTimeout(timer);
      resolve(failed(`its listing could not be started: ${error.message}`));
    });
    child.on('close', (code, signal) => {
      clearTimeout(timer);
      if (report.problem === '') report = failed(`its listing ended with ${signal ?? `exit code ${code}`}. ${said}`);
      resolve(report);
    });
  });
}

/** Lists the adapters that one driver offers, in this process. For the probe process: a driver may crash it. */
export async function listDriver(icdPath: string): Promise<AdapterEntry[]> {
  const entries: AdapterEntry[] = [];
  for (const offer of await driverOffers(icdPath)) {
    const adapter = await requestAdapter(offer, offer.software);
    if (adapter) entries.push(describeAdapter(offer, adapter));
  }
  return entries;
}

/** A device that a driver offers, before Dawn has looked at it. */
interface Offer {
  readonly id: string;
  readonly name: string;
  readonly software: boolean;
  readonly icdPath: string;
  readonly device: PhysicalDevice;
  /** False when the driver offers several devices, from which this one must be told. */
  readonly alone: boolean;
}

async function driverOffers(icdPath: string): Promise<Offer[]> {
  const { loaderPath } = await unpackVulkan();
  const devices = await withEnvironment(driverEnvironment(icdPath), async () => listPhysicalDevices(loaderPath));
  return devices.filter(isUsable).map((device) => ({
    id: idOf(device),
    name: device.name,
    software: device.kind === 'cpu',
    icdPath,
    device,
    alone: devices.length === 1,
  }));
}

function isUsable({ kind, name, driverVersion }: PhysicalDevice): boolean {
  return !(kind === 'cpu' && name.startsWith('llvmpipe') && driverVersion >>> 22 < LAVAPIPE_MIN_MAJOR);
}

function idOf({ kind, name, pciId, deviceUuid }: PhysicalDevice): string {
  if (kind === 'cpu' && name.startsWith('llvmpipe')) return 'lavapipe';
  if (kind === 'cpu' && name.startsWith('SwiftShader')) return 'swiftshader';
  return pciId ?? `uuid:${deviceUuid}`;
}

function describeAdapter({ id, name, software, icdPath, device }: Offer, adapter: GPUAdapter): AdapterEntry {
  // Dawn's attributes are getters of the prototype, so neither JSON nor Object.keys sees them.
  const limits: Record<string, number> = {};
  for (const limit in adapter.limits) {
    const value = adapter.limits[limit as keyof GPUSupportedLimits];
    if (typeof value === 'number') limits[limit] = value;
  }
  const info = adapter.info as GPUAdapterInfo & { readonly subgroupMatrixConfigs?: Iterable<SubgroupMatrix> };
  return {
    id,
    name,
    vendor: VENDORS[device.vendorId] ?? info.vendor,
    driver: device.driverInfo ? `${device.driverName} ${device.driverInfo}` : info.description || device.driverName,
    software,
    pciId: device.pciId,
    features: [...adapter.features].sort(),
    limits,
    subgroupMinSize: info.subgroupMinSize,
    subgroupMaxSize: info.subgroupMaxSize,
    subgroupMatrixConfigs: [...(info.subgroupMatrixConfigs ?? [])].map(
      ({ componentType, resultComponentType, M, N, K }) => ({ componentType, resultComponentType, M, N, K }),
    ),
    tensorCores: offersTensorCores(adapter),
    deviceMemoryBytes: device.deviceMemoryBytes,
    uploadStaging: device.uploadStaging,
    icdPath,
  };
}

/**
 * Opens an adapter in this process: `auto`, `software`, an id or a name, as findAdapter takes them. Real GPUs run with
 * Dawn's validation and bounds checks off, software ones with them on; `validate` decides otherwise. The adapter is the
 * one asked for or an error: of several GPUs of one driver the process sees only this one, and that is checked.
 * Throws StudioError `no-adapter`.
 */
export async function openAdapter(
  wanted: string,
  options: { readonly validate?: boolean } = {},
): Promise<{ adapter: GPUAdapter; entry: AdapterEntry }> {
  const { swiftShaderManifestPath } = await unpackVulkan();
  const manifests = wanted === 'swiftshader' ? [swiftShaderManifestPath] : await driverManifests();
  const offers: Offer[] = [];
  for (const icdPath of manifests) {
    offers.push(...(await driverOffers(icdPath)));
    if (offers.some(({ id }) => id === wanted)) break;
  }
  const offer = findAdapter(sortAdapters(offers), wanted);
  const adapter = await requestAdapter(offer, options.validate ?? offer.software);
  if (!adapter) {
    throw new StudioError(
      'no-adapter',
      `${offer.name} (${offer.id}) is there, but Dawn cannot use it. ${INSTALL_HINT}`,
    );
  }
  return { adapter, entry: describeAdapter(offer, adapter) };
}

/** An adapter on which everything compiles and nothing runs: it checks kernels that use features this machine lacks. */
export async function openNullAdapter(): Promise<GPUAdapter> {
  const adapter = await (await createGpu(['backend=null', ...toggles(true)])).requestAdapter();
  if (!adapter) throw new StudioError('no-adapter', "Dawn's null backend gives no adapter.");
  return adapter;
}

/** What this process holds on each device of a driver, in bytes; null where the driver does not say. */
export async function readHeldMemory(icdPath: string): Promise<HeldMemory[]> {
  const offers = await driverOffers(icdPath);
  return offers.map(({ id, name, device }) => ({ id, name, bytes: device.memory?.usedBytes ?? null }));
}

/** A device and the bytes of it that this process holds. */
export interface HeldMemory {
  readonly id: string;
  readonly name: string;
  readonly bytes: number | null;
}

async function requestAdapter(offer: Offer, validate: boolean): Promise<GPUAdapter | null> {
  const { icdPath, device } = offer;
  const environment = { ...driverEnvironment(icdPath), ...(offer.alone ? {} : await deviceFilter(offer)) };
  return withEnvironment(environment, async () => {
    if (!offer.alone) {
      const { loaderPath } = await unpackVulkan();
      const seen = listPhysicalDevices(loaderPath);
      if (seen.length !== 1 || seen[0].deviceUuid !== device.deviceUuid) {
        const list = seen.map(idOf).join(', ') || 'none';
        throw new StudioError('no-adapter', `Asked for ${offer.name} (${offer.id}) alone, but Vulkan gives ${list}.`);
      }
    }
    paceDawn(!offer.software);
    return (await createGpu(toggles(validate))).requestAdapter({ powerPreference: 'high-performance' });
  });
}

/** Dawn's switches. Unsafe APIs are its experimental features; without the f16 switch NVIDIA has no shader-f16. */
function toggles(validate: boolean): string[] {
  const on = ['allow_unsafe_apis', 'vulkan_enable_f16_on_nvidia'];
  if (!validate) on.push('disable_robustness', 'skip_validation', 'disable_workgroup_init');
  return [`enable-dawn-features=${on.join(',')}`, 'disable-dawn-features=timestamp_quantization'];
}

/** Every object that Dawn's create() gave. Once V8 collects one, the process dies at some later call. */
const keep = globalThis as typeof globalThis & { shardStudioGpus?: unknown[] };

async function createGpu(flags: string[]): Promise<GPU> {
  const { loaderPath } = await unpackVulkan();
  // Dawn opens libvulkan.so.1 by its soname, which finds the library that is already loaded: no LD_LIBRARY_PATH needed.
  koffi.load(loaderPath, { global: true });
  const { create, globals } = await import('webgpu');
  for (const [name, value] of Object.entries(globals)) {
    if (!(name in globalThis)) Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  }
  const gpu = create(flags);
  keep.shardStudioGpus ??= [];
  keep.shardStudioGpus.push(gpu);
  return gpu;
}

/** What makes the Vulkan loader see one driver and nothing that the system would put in between. */
function driverEnvironment(icdPath: string): Record<string, string> {
  return { VK_DRIVER_FILES: icdPath, VK_ICD_FILENAMES: icdPath, VK_LOADER_LAYERS_DISABLE: '~implicit~' };
}

/**
 * What makes the loader see one device of a driver that offers several: a settings file that names it by its UUIDs. The
 * loader reads driverVersion, which NVIDIA sets above 2^31, as a signed number, so it is written as one.
 */
async function deviceFilter({ icdPath, device }: Offer): Promise<Record<string, string>> {
  const bytes = (uuid: string) => [...Buffer.from(uuid, 'hex')];
  const settings = {
    file_format_version: '1.0.0',
    settings: {
      additional_drivers: [{ path: icdPath }],
      additional_drivers_use_exclusively: true,
      device_configurations: [
        {
          deviceName: device.name,
          deviceUUID: bytes(device.deviceUuid),
          driverUUID: bytes(device.driverUuid),
          driverVersion: device.driverVersion | 0,
        },
      ],
    },
  };
  const home = join(await privateCacheFolder(), `device-${device.deviceUuid}-${device.driverUuid}`);
  const folder = join(home, 'vulkan/loader_settings.d');
  await mkdir(folder, { recursive: true });
  const draft = join(folder, `.${randomUUID()}`);
  await writeFile(draft, JSON.stringify(settings));
  await rename(draft, join(folder, 'vk_loader_settings.json'));
  return { XDG_CONFIG_HOME: home };
}

let turn: Promise<unknown> = Promise.resolve();

/** Runs the work with these environment variables and puts the old ones back; one at a time. */
function withEnvironment<T>(environment: Record<string, string>, work: () => Promise<T>): Promise<T> {
  const result = turn.then(async () => {
    const before = Object.keys(environment).map((name) => [name, process.env[name]] as const);
    Object.assign(process.env, environment);
    try {
      return await work();
    } finally {
      for (const [name, value] of before) {
        if (value === undefined) delete process.env[name];
        else process.env[name] = value;
      }
    }
  });
  turn = result.catch(() => {});
  return result;
}
