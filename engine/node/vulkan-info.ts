import koffi from 'koffi';
import { StudioError } from '../errors.ts';

/** One physical device as Vulkan reports it. */
export interface PhysicalDevice {
  readonly name: string;
  readonly kind: 'other' | 'integrated' | 'discrete' | 'virtual' | 'cpu';
  readonly vendorId: number;
  readonly deviceId: number;
  /** The driver's own coding of its version. */
  readonly driverVersion: number;
  readonly driverName: string;
  readonly driverInfo: string;
  /** domain:bus:device.function in lower-case hex, or null for a device that is not on a PCI bus. */
  readonly pciId: string | null;
  /** 16 bytes in hex. */
  readonly deviceUuid: string;
  readonly driverUuid: string;
  /** The largest device-local heap. */
  readonly deviceMemoryBytes: number;
  /** Where a buffer for uploads lies: the largest heap that the host can write and that needs no flush. */
  readonly uploadStaging: 'device' | 'host';
  /** What this process holds on the device, and what the driver thinks it could hold; null without VK_EXT_memory_budget. */
  readonly memory: { readonly usedBytes: number; readonly budgetBytes: number } | null;
}

// Values of VkStructureType.
const TYPE = {
  instanceCreateInfo: 1,
  deviceProperties2: 1000059001,
  memoryProperties2: 1000059006,
  idProperties: 1000071004,
  driverProperties: 1000196000,
  pciBusInfo: 1000212000,
  memoryBudget: 1000237000,
};
const KINDS = ['other', 'integrated', 'discrete', 'virtual', 'cpu'] as const;
const HEAP_DEVICE_LOCAL = 1;
const MEMORY_HOST_VISIBLE_COHERENT = 2 | 4;
const API_1_3 = (1 << 22) | (3 << 12);

type Call = (...args: unknown[]) => number;
interface Vulkan {
  readonly enumerate: Call;
  readonly extensions: Call;
  readonly properties: Call;
  readonly memory: Call;
  readonly instance: unknown;
}
/** One Vulkan instance for each environment that was seen: making one loads the drivers, which is slow. */
const instances = new Map<string, Vulkan>();

/**
 * The physical devices that the drivers of the process's environment offer (VK_DRIVER_FILES, and loader settings under
 * XDG_CONFIG_HOME), in the loader's order. Memory numbers are of now. Throws StudioError `no-adapter` when Vulkan
 * cannot start.
 */
export function listPhysicalDevices(loaderPath: string): PhysicalDevice[] {
  const environment = JSON.stringify([process.env.VK_DRIVER_FILES, process.env.XDG_CONFIG_HOME]);
  const vulkan = instances.get(environment) ?? start(loaderPath);
  instances.set(environment, vulkan);
  const count = Buffer.alloc(4);
  vulkan.enumerate(vulkan.instance, count, null);
  const handles = Buffer.alloc(8 * count.readUInt32LE(0));
  vulkan.enumerate(vulkan.instance, count, handles);
  return Array.from({ length: count.readUInt32LE(0) }, (_, index) =>
    inspect(vulkan, handles.readBigUInt64LE(8 * index)),
  );
}

function start(loaderPath: string): Vulkan {
  const library = koffi.load(loaderPath, { global: true });
  const create = library.func('int vkCreateInstance(void *info, void *allocator, _Out_ void **instance)');
  const app = Buffer.alloc(48);
  app.writeUInt32LE(API_1_3, 44);
  const info = Buffer.alloc(64);
  info.writeUInt32LE(TYPE.instanceCreateInfo, 0);
  info.writeBigUInt64LE(koffi.address(app), 24);
  const instance: unknown[] = [null];
  const result: number = create(info, null, instance);
  if (result !== 0) throw new StudioError('no-adapter', `Vulkan cannot start: vkCreateInstance gave ${result}.`);
  return {
    instance: instance[0],
    enumerate: library.func('int vkEnumeratePhysicalDevices(void *instance, void *count, void *devices)'),
    extensions: library.func(
      'int vkEnumerateDeviceExtensionProperties(void *device, void *layer, void *count, void *extensions)',
    ),
    properties: library.func('void vkGetPhysicalDeviceProperties2(void *device, void *properties)'),
    memory: library.func('void vkGetPhysicalDeviceMemoryProperties2(void *device, void *properties)'),
  };
}

/** An output struct of Vulkan: type, pointer to the next one, then `bytes` to be filled. */
function struct(type: number, bytes: number, next?: Buffer): Buffer {
  const buffer = Buffer.alloc(16 + bytes);
  buffer.writeUInt32LE(type, 0);
  if (next) buffer.writeBigUInt64LE(koffi.address(next), 8);
  return buffer;
}

function text(buffer: Buffer, offset: number, length: number): string {
  return buffer.toString('utf8', offset, offset + length).split('\0')[0];
}

/** The device's extensions by name. Each record is 256 bytes of name and 4 of version. */
function extensionsOf({ extensions }: Vulkan, device: bigint): Set<string> {
  const count = Buffer.alloc(4);
  extensions(device, null, count, null);
  const records = Buffer.alloc(260 * count.readUInt32LE(0));
  extensions(device, null, count, records);
  return new Set(Array.from({ length: count.readUInt32LE(0) }, (_, index) => text(records, 260 * index, 256)));
}

function inspect(api: Vulkan, device: bigint): PhysicalDevice {
  const extensions = extensionsOf(api, device);
  const pci = struct(TYPE.pciBusInfo, 16);
  const hasPci = extensions.has('VK_EXT_pci_bus_info');
  const driver = struct(TYPE.driverProperties, 4 + 256 + 256 + 4, hasPci ? pci : undefined);
  const ids = struct(TYPE.idProperties, 48, driver);
  const properties = struct(TYPE.deviceProperties2, 824, ids);
  api.properties(device, properties);
  const budget = struct(TYPE.memoryBudget, 256);
  const hasBudget = extensions.has('VK_EXT_memory_budget');
  const memory = struct(TYPE.memoryProperties2, 520, hasBudget ? budget : undefined);
  api.memory(device, memory);

  const heaps = Array.from({ length: memory.readUInt32LE(16 + 260) }, (_, heap) => ({
    bytes: Number(memory.readBigUInt64LE(16 + 264 + 16 * heap)),
    deviceLocal: (memory.readUInt32LE(16 + 264 + 16 * heap + 8) & HEAP_DEVICE_LOCAL) !== 0,
    budgetBytes: Number(budget.readBigUInt64LE(16 + 8 * heap)),
    usedBytes: Number(budget.readBigUInt64LE(16 + 128 + 8 * heap)),
  }));
  const types = Array.from({ length: memory.readUInt32LE(16) }, (_, type) => ({
    flags: memory.readUInt32LE(20 + 8 * type),
    heap: heaps[memory.readUInt32LE(24 + 8 * type)],
  }));
  const largest = <T>(items: T[], bytes: (item: T) => number) =>
    items.reduce<T | undefined>((best, item) => (best && bytes(best) >= bytes(item) ? best : item), undefined);
  const own = largest(
    heaps.filter((heap) => heap.deviceLocal),
    (heap) => heap.bytes,
  );
  const writable = types.filter(({ flags }) => (flags & MEMORY_HOST_VISIBLE_COHERENT) === MEMORY_HOST_VISIBLE_COHERENT);
  const hex = (value: number, digits: number) => value.toString(16).padStart(digits, '0');
  const [domain, bus, slot, part] = [16, 20, 24, 28].map((offset) => pci.readUInt32LE(offset));
  return {
    name: text(properties, 16 + 20, 256),
    kind: KINDS[properties.readUInt32LE(16 + 16)] ?? 'other',
    vendorId: properties.readUInt32LE(16 + 8),
    deviceId: properties.readUInt32LE(16 + 12),
    driverVersion: properties.readUInt32LE(16 + 4),
    driverName: text(driver, 20, 256),
    driverInfo: text(driver, 276, 256),
    pciId: hasPci ? `${hex(domain, 4)}:${hex(bus, 2)}:${hex(slot, 2)}.${part.toString(16)}` : null,
    deviceUuid: ids.toString('hex', 16, 32),
    driverUuid: ids.toString('hex', 32, 48),
    deviceMemoryBytes: own?.bytes ?? 0,
    uploadStaging: largest(writable, ({ heap }) => heap.bytes)?.heap.deviceLocal ? 'device' : 'host',
    memory: own && hasBudget ? { usedBytes: own.usedBytes, budgetBytes: own.budgetBytes } : null,
  };
}
