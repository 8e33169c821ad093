import { StudioError } from '../errors.ts';
import { OPCODE } from './pickle-opcodes.ts';
import { type PyObject, PyOrderedDict, PyTuple, type PyValue } from './python-value.ts';

const MAX_DEPTH = 100;
const UTF8 = new TextEncoder();

/**
 * Writes pickle protocol 2, the newest that torch's restricted loader reads. Repeated text and globals go through the memo;
 * containers do not, so a value used twice is two values after loading.
 */
export class PickleWriter {
  private bytes = new Uint8Array(4096);
  private view = new DataView(this.bytes.buffer);
  private used = 0;
  private depth = 0;
  private readonly memo = new Map<string, number>();

  /** `writeObject` writes an object that has a `kind`, by calling back into this writer. */
  constructor(private readonly writeObject?: (value: PyObject, writer: PickleWriter) => void) {
    this.op(OPCODE.PROTO, 2);
  }

  /** STOP, and everything written, as its own array. */
  finish(): Uint8Array<ArrayBuffer> {
    this.op(OPCODE.STOP);
    return this.bytes.slice(0, this.used);
  }

  /** Any value that Python values here can be. A number that is a safe integer (but not -0) is an int, any other a float. */
  value(value: PyValue): void {
    if (value === null) this.op(OPCODE.NONE);
    else if (typeof value === 'boolean') this.op(value ? OPCODE.NEWTRUE : OPCODE.NEWFALSE);
    else if (typeof value === 'string') this.text(value);
    else if (typeof value === 'bigint') this.long(value);
    else if (typeof value !== 'number') this.container(value);
    else if (Number.isSafeInteger(value) && !Object.is(value, -0)) this.integer(value);
    else this.float(value);
  }

  private container(value: Exclude<PyValue, null | boolean | string | bigint | number>): void {
    if (++this.depth > MAX_DEPTH) {
      throw new StudioError('bad-data', `A checkpoint cannot hold values more than ${MAX_DEPTH} containers deep.`);
    }
    if (value instanceof PyTuple) this.tuple(value.items);
    else if (Array.isArray(value)) this.list(value);
    else if (value instanceof Map) this.dict(value);
    else if (value instanceof Set) this.set(value);
    else if (value instanceof Uint8Array) this.rawBytes(value);
    else if (this.writeObject) this.writeObject(value, this);
    else throw new StudioError('internal', `No one said how to pickle a ${value.kind}.`);
    this.depth--;
  }

  /** A class or function by its name. */
  global(module: string, name: string): void {
    this.remember(`c${module} ${name}`, () => {
      this.op(OPCODE.GLOBAL);
      this.append(UTF8.encode(`${module}\n${name}\n`));
    });
  }

  /** module.name(*args) */
  reduce(module: string, name: string, args: readonly PyValue[]): void {
    this.global(module, name);
    this.value(new PyTuple(args));
    this.op(OPCODE.REDUCE);
  }

  tuple(items: readonly PyValue[]): void {
    this.tupleOf(items.length, () => {
      for (const item of items) this.value(item);
    });
  }

  /** A tuple of `count` items that `write` puts on the stack. */
  tupleOf(count: number, write: () => void): void {
    if (count > 3) this.op(OPCODE.MARK);
    write();
    if (count === 0) this.op(OPCODE.EMPTY_TUPLE);
    else this.op(count > 3 ? OPCODE.TUPLE : OPCODE.TUPLE1 - 1 + count);
  }

  /** The persistent id that `write` has put on the stack. */
  persistentId(write: () => void): void {
    write();
    this.op(OPCODE.BINPERSID);
  }

  /** Raw opcode bytes, for what the methods above leave out. */
  op(...codes: number[]): void {
    this.room(codes.length);
    for (const code of codes) this.bytes[this.used++] = code;
  }

  private text(value: string): void {
    this.remember(`u${value}`, () => {
      const encoded = UTF8.encode(value);
      this.op(OPCODE.BINUNICODE);
      this.uint32(encoded.length);
      this.append(encoded);
    });
  }

  private integer(value: number): void {
    if (value >= 0 && value < 0x100) this.op(OPCODE.BININT1, value);
    else if (value >= 0 && value < 0x10000) this.op(OPCODE.BININT2, value & 0xff, value >>> 8);
    else if (value >= -0x80000000 && value < 0x80000000) {
      this.op(OPCODE.BININT);
      this.uint32(value >>> 0);
    } else this.long(BigInt(value));
  }

  private long(value: bigint): void {
    let length = 0;
    while (BigInt.asIntN(8 * length, value) !== value) length++;
    if (length > 255) throw new StudioError('bad-data', 'A checkpoint cannot hold an integer of more than 255 bytes.');
    this.op(OPCODE.LONG1, length);
    for (let i = 0; i < length; i++) this.op(Number((value >> BigInt(8 * i)) & 0xffn));
  }

  private float(value: number): void {
    this.op(OPCODE.BINFLOAT);
    this.room(8);
    this.view.setFloat64(this.used, value, false);
    this.used += 8;
  }

  private list(items: readonly PyValue[]): void {
    this.op(OPCODE.EMPTY_LIST);
    if (items.length === 0) return;
    this.op(OPCODE.MARK);
    for (const item of items) this.value(item);
    this.op(OPCODE.APPENDS);
  }

  private dict(entries: Map<PyValue, PyValue>): void {
    if (entries instanceof PyOrderedDict) this.reduce('collections', 'OrderedDict', []);
    else this.op(OPCODE.EMPTY_DICT);
    if (entries.size === 0) return;
    this.op(OPCODE.MARK);
    for (const [key, item] of entries) {
      this.value(key);
      this.value(item);
    }
    this.op(OPCODE.SETITEMS);
  }

  private set(items: Set<PyValue>): void {
    this.global('__builtin__', 'set');
    this.tuple([[...items]]);
    this.op(OPCODE.REDUCE);
  }

  /** Protocol 2 has no bytes: Python 3 writes them as _codecs.encode(text, 'latin1'). */
  private rawBytes(value: Uint8Array): void {
    let text = '';
    for (const byte of value) text += String.fromCharCode(byte);
    this.reduce('_codecs', 'encode', [text, 'latin1']);
  }

  /** Writes once and puts the result into the memo; later times only get it from there. */
  private remember(key: string, write: () => void): void {
    const known = this.memo.get(key);
    if (known !== undefined) {
      this.memoOp(OPCODE.BINGET, OPCODE.LONG_BINGET, known);
      return;
    }
    write();
    this.memoOp(OPCODE.BINPUT, OPCODE.LONG_BINPUT, this.memo.size);
    this.memo.set(key, this.memo.size);
  }

  private memoOp(short: number, long: number, index: number): void {
    if (index < 0x100) this.op(short, index);
    else {
      this.op(long);
      this.uint32(index);
    }
  }

  private uint32(value: number): void {
    this.room(4);
    this.view.setUint32(this.used, value, true);
    this.used += 4;
  }

  private append(bytes: Uint8Array): void {
    this.room(bytes.length);
    this.bytes.set(bytes, this.used);
    this.used += bytes.length;
  }

  private room(more: number): void {
    if (this.used + more <= this.bytes.length) return;
    const grown = new Uint8Array(Math.max(2 * this.bytes.length, this.used + more));
    grown.set(this.bytes.subarray(0, this.used));
    this.bytes = grown;
    this.view = new DataView(grown.buffer);
  }
}
