import { CATEGORIES } from '../../engine/schedule/schedule.ts';
import { fromWire, type RunEvent, type StepEvent, toWire } from '../../engine/trainer/events.ts';

/**
 * Events as bytes. A chunk is a version byte, then records. A step, of which there are millions, is 151 bytes: kind,
 * rank (uint16), step (uint32) and 18 float64, so NaN and the infinities stay what they are. Any other event is kind,
 * length (uint32) and JSON. Little endian.
 */
export const CHUNK_VERSION = 1;

const KIND_STEP = 1;
const KIND_JSON = 2;
const HEAD_BYTES = 7;
const STEP_BYTES = HEAD_BYTES + 18 * 8;

/** The record of one event. */
export function encodeEvent(event: RunEvent): Uint8Array {
  if (event.event === 'step') return encodeStep(event);
  const json = new TextEncoder().encode(JSON.stringify(event));
  const record = new Uint8Array(5 + json.length);
  record[0] = KIND_JSON;
  new DataView(record.buffer).setUint32(1, json.length, true);
  record.set(json, 5);
  return record;
}

function encodeStep(event: StepEvent): Uint8Array {
  const record = new Uint8Array(STEP_BYTES);
  const view = new DataView(record.buffer);
  record[0] = KIND_STEP;
  view.setUint16(1, event.rank, true);
  view.setUint32(3, event.step, true);
  const { memory } = event;
  const numbers = [
    fromWire(event.loss),
    fromWire(event.lossMean),
    fromWire(event.gradNorm),
    event.iterationMs,
    event.tokens,
    memory.currentBytes,
    memory.peakBytes,
    memory.liveBytes,
    ...CATEGORIES.map((category) => memory.byCategory[category]),
    memory.hostBytes,
    memory.allocRetries,
    memory.ooms,
  ];
  for (const [index, number] of numbers.entries()) view.setFloat64(HEAD_BYTES + 8 * index, number, true);
  return record;
}

/** The events of a chunk, in order. Throws RangeError on bytes that are not a chunk of this version. */
export function* decodeChunk(bytes: Uint8Array): Generator<RunEvent> {
  if (bytes[0] !== CHUNK_VERSION)
    throw new RangeError(`a chunk of version ${bytes[0]}; this build reads ${CHUNK_VERSION}`);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 1; at < bytes.length; ) {
    if (bytes[at] === KIND_STEP) {
      yield decodeStep(view, at);
      at += STEP_BYTES;
    } else if (bytes[at] === KIND_JSON) {
      const end = at + 5 + view.getUint32(at + 1, true);
      if (end > bytes.length) throw new RangeError(`a chunk is cut at byte ${bytes.length}`);
      yield JSON.parse(new TextDecoder().decode(bytes.subarray(at + 5, end))) as RunEvent;
      at = end;
    } else {
      throw new RangeError(`a chunk has an unknown record ${bytes[at]} at byte ${at}`);
    }
  }
}

function decodeStep(view: DataView, at: number): StepEvent {
  const number = (index: number) => view.getFloat64(at + HEAD_BYTES + 8 * index, true);
  return {
    event: 'step',
    rank: view.getUint16(at + 1, true),
    step: view.getUint32(at + 3, true),
    loss: toWire(number(0)),
    lossMean: toWire(number(1)),
    gradNorm: toWire(number(2)),
    iterationMs: number(3),
    tokens: number(4),
    memory: {
      currentBytes: number(5),
      peakBytes: number(6),
      liveBytes: number(7),
      byCategory: Object.fromEntries(
        CATEGORIES.map((category, index) => [category, number(8 + index)]),
      ) as StepEvent['memory']['byCategory'],
      hostBytes: number(15),
      allocRetries: number(16),
      ooms: number(17),
    },
  };
}
