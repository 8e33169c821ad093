import type { VariantChoices } from '../ops/kernel.ts';
import { type AdapterRates, type CopyRates, KERNEL_CLASSES, type KernelClass, type KernelRate } from './rates.ts';

/**
 * What the planner has to know of an adapter: plain data, kept per adapter and sent to the form. The same config on two
 * adapters with equal profiles has the same plan.
 */
export interface AdapterProfile extends AdapterRates {
  readonly name: string;
  readonly software: boolean;
  /** Where a binding may start in a buffer. */
  readonly offsetAlignmentBytes: number;
  readonly maxBindingBytes: number;
  readonly maxBufferBytes: number;
  /** Most bytes that one staging slot holds. */
  readonly stagingSlotBytes: number;
  /** From how many bytes on an activation that is cheap to compute is computed again in backward rather than kept. */
  readonly againFromBytes: number;
  /** Whether products of halves run on tensor cores: that it has them, and that they were found to compute right. */
  readonly tensorCores?: boolean;
  /** How many adapters like it a run may spread over; as many as it has ranks if left out, and 1 for a software one. */
  readonly alike?: number;
  /** Kernel variants that a tuner chose; see ops/kernel.ts. Part of the profile, since a schedule says what runs. */
  readonly variants?: VariantChoices;
  /** Whether the rates were measured on this adapter; else they are those of the nearest built-in profile. */
  readonly calibrated?: boolean;
}

/** How many ranks of a run share one adapter. */
export function ranksPerAdapter({ software, alike }: AdapterProfile, world: number): number {
  return Math.ceil(world / (software ? 1 : (alike ?? world)));
}

const KiB = 2 ** 10;
const MiB = 2 ** 20;
const GiB = 2 ** 30;

/** One rate for every class. */
function kernelRates(seconds: number, flopsPerSecond: number, bytesPerSecond: number): Record<KernelClass, KernelRate> {
  const each = { seconds, flopsPerSecond, bytesPerSecond };
  return Object.fromEntries(KERNEL_CLASSES.map((name) => [name, each])) as Record<KernelClass, KernelRate>;
}

/** One rate for all copies, of one process. */
function copyRates(bytesPerSecond: number, pieceSeconds: number, roundTripSeconds: number): CopyRates {
  return {
    processes: 1,
    uploadBytesPerSecond: bytesPerSecond,
    hostCopyBytesPerSecond: bytesPerSecond,
    downloadBytesPerSecond: bytesPerSecond,
    placeBytesPerSecond: bytesPerSecond,
    pieceSeconds,
    roundTripSeconds,
  };
}

/** Where each process has a GPU of its own. */
const ofOneH200 = { downloadBytesPerSecond: 42e9, placeBytesPerSecond: 44e9 };

export const builtInProfiles: Readonly<Record<'software' | 'interpreter' | 'h200', AdapterProfile>> = {
  /** SwiftShader on two cores. */
  software: {
    name: 'software',
    software: true,
    offsetAlignmentBytes: 256,
    maxBindingBytes: GiB,
    maxBufferBytes: GiB,
    stagingSlotBytes: 16 * MiB,
    againFromBytes: 256 * KiB,
    kernels: kernelRates(20e-6, 6e9, 4e9),
    switchSeconds: 2e-6,
    submitGapSeconds: 2e-6,
    dispatchSeconds: 20e-6,
    submitSeconds: 50e-6,
    copies: [copyRates(4e9, 50e-6, 1e-3)],
  },
  interpreter: {
    name: 'interpreter',
    software: true,
    offsetAlignmentBytes: 256,
    maxBindingBytes: 2 * GiB - 4,
    maxBufferBytes: 2 * GiB - 4,
    stagingSlotBytes: 16 * MiB,
    againFromBytes: 256 * KiB,
    kernels: kernelRates(1e-6, 1e9, 2e9),
    switchSeconds: 1e-9,
    submitGapSeconds: 1e-9,
    dispatchSeconds: 1e-6,
    submitSeconds: 1e-6,
    copies: [copyRates(4e9, 1e-6, 1e-6)],
  },
  /** One H200 through Dawn, as measured; see docs/performance.md. */
  h200: {
    name: 'NVIDIA H200',
    software: false,
    tensorCores: true,
    offsetAlignmentBytes: 16,
    maxBindingBytes: 2 * GiB - 4,
    maxBufferBytes: 32 * GiB,
    stagingSlotBytes: 32 * MiB,
    againFromBytes: 256 * KiB,
    kernels: {
      ...kernelRates(2e-6, 41e12, 3.8e12),
      matmul: { seconds: 45e-6, flopsPerSecond: 41e12, bytesPerSecond: 3.8e12 },
      matmulHalf: { seconds: 42e-6, flopsPerSecond: 41e12, bytesPerSecond: 3.8e12 },
      tensorCores: { seconds: 33e-6, flopsPerSecond: 217e12, bytesPerSecond: 3.8e12 },
      fewRows: { seconds: 5.1e-6, flopsPerSecond: 41e12, bytesPerSecond: 1.26e12 },
      attention: { seconds: 5.3e-6, flopsPerSecond: 25e12, bytesPerSecond: 3.8e12 },
      attentionGrad: { seconds: 6.3e-6, flopsPerSecond: 24e12, bytesPerSecond: 3.8e12 },
      attentionCores: { seconds: 20e-6, flopsPerSecond: 36e12, bytesPerSecond: 3.8e12 },
      rows: { seconds: 2.7e-6, flopsPerSecond: 41e12, bytesPerSecond: 3.8e12 },
    },
    switchSeconds: 0.6e-6,
    submitGapSeconds: 31e-6,
    dispatchSeconds: 7.4e-6,
    submitSeconds: 26e-6,
    copies: [
      { ...copyRates(36e9, 43e-6, 26e-6), hostCopyBytesPerSecond: 47e9, ...ofOneH200 },
      { ...copyRates(31e9, 47e-6, 27e-6), hostCopyBytesPerSecond: 52e9, ...ofOneH200, processes: 2 },
    ],
  },
};

/** The part of GPUAdapter's limits that a profile needs. */
export interface ProfileLimits {
  readonly minStorageBufferOffsetAlignment: number;
  readonly maxStorageBufferBindingSize: number;
  readonly maxBufferSize: number;
}

/**
 * A profile from what an adapter says of itself, with the rates measured on it, or else of the nearest built-in one. That it
 * has tensor cores is to be said: a worker uses them only where it found them to compute right.
 */
export function profileOf(
  adapter: { name: string; software: boolean; limits: ProfileLimits; tensorCores?: boolean },
  rates: AdapterRates | null = null,
): AdapterProfile {
  const nearest = adapter.software ? builtInProfiles.software : builtInProfiles.h200;
  return {
    ...nearest,
    ...(rates ? { ...rates, calibrated: true } : {}),
    name: adapter.name,
    software: adapter.software,
    tensorCores: adapter.tensorCores === true,
    // Uniforms share the slab of constants, so the larger of both alignments that WebGPU guarantees is not needed here.
    offsetAlignmentBytes: adapter.limits.minStorageBufferOffsetAlignment,
    maxBindingBytes: adapter.limits.maxStorageBufferBindingSize,
    maxBufferBytes: Math.min(adapter.limits.maxBufferSize, 32 * GiB),
  };
}
