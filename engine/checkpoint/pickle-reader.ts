import { StudioError } from '../errors.ts';
import { OPCODE } from './pickle-opcodes.ts';
import { type PyObject, PyOrderedDict, PyTuple, type PyValue, sequenceItems } from './python-value.ts';
import { treeFault } from './tree-bounds.ts';

/**
 * A class or function that a pickle may name. Nothing of Python is looked up: `call`, `create` and `build` are ours and
 * make plain data. What an entry does not offer is refused.
 */
export interface PickleGlobal {
  /** Stands for the name itself, as torch.float16 does. */
  readonly value?: PyValue;
  /** name(*args) */
  readonly call?: (args: readonly PyValue[]) => PyValue;
  /** name.__new__(name, *args), then filled by `build` */
  readonly create?: (args: readonly PyValue[]) => PyValue;
  /** instance.__setstate__(state), for what `call` or `create` returned */
  readonly build?: (instance: PyValue, state: PyValue) => void;
}

/** The allow-list: what `module.name` means, or undefined for what must be refused. */
export type PickleGlobals = (module: string, name: string) => PickleGlobal | undefined;

/** A name of the allow-list that was put on the stack and not called, such as the class given to _rebuild_from_type_v2. */
export class PyGlobalReference implements PyObject {
  readonly kind = 'global';
  constructor(
    readonly module: string,
    readonly name: string,
    readonly entry: PickleGlobal,
  ) {}
}

export interface PickleOptions {
  /** How errors call the pickle: its file. */
  readonly file: string;
  readonly globals: PickleGlobals;
  /** What a persistent id stands for (torch: a storage). Without it persistent ids are refused. */
  readonly persistent?: (id: PyValue) => PyValue;
  /** Most containers inside each other in the result. */
  readonly maxDepth?: number;
  /** Most values in the result, one that is shared counted each time: what a walk of the tree will visit. */
  readonly maxNodes?: number;
}

const MAX_DEPTH = 100;
/**
 * A file of a few kilobytes inflates to millions of one-byte opcodes, so memory is bounded by what they make: containers,
 * instances and what the memo remembers (about 400 bytes each, with the check of the tree), and everything that is pushed
 * or marked (about 40).
 */
const MAX_OBJECTS = 2_000_000;
const MAX_VALUES = 8_000_000;
/** Arguments of all calls together, in items and characters for each byte of the pickle; torch's own files stay below 4. */
const MAX_ARGUMENT_UNITS_PER_BYTE = 16;
const MAX_PROTOCOL = 5;
/** Numbers of more bits than this are no number of a checkpoint, and cost quadratic time. */
const MAX_LONG_BYTES = 128;

/**
 * Reads one pickle: protocol 2, and of the later protocols what Python itself writes for plain data and the classes of a
 * checkpoint. It executes nothing.
 *
 * Throws 'refused-global' with the name of a global outside the allow-list, 'bad-file' for anything malformed, cyclic or
 * beyond the bounds. Time and memory are linear in the length of the pickle, and bounded.
 */
export function readPickle(bytes: Uint8Array, options: PickleOptions): PyValue {
  return new PickleMachine(bytes, options).run();
}

/**
 * Reads the pickle at the start of `bytes` and says where it ends, for files that put one after the other. Errors: those
 * of `readPickle`; one whose `details.cutShort` is true may only need more bytes.
 */
export function readPickleHead(bytes: Uint8Array, options: PickleOptions): { value: PyValue; bytes: number } {
  const machine = new PickleMachine(bytes, options);
  return { value: machine.run(), bytes: machine.position };
}

class PickleMachine {
  private readonly view: DataView;
  private at = 0;
  private argumentUnits = 0;
  private objects = 0;
  private values = 0;
  private stack: PyValue[] = [];
  private readonly outer: PyValue[][] = [];
  private readonly memo = new Map<number, PyValue>();
  /** Which allow-list entry made an instance, so that BUILD knows how to fill it. */
  private readonly makers = new Map<PyValue, PickleGlobal>();

  constructor(
    private readonly bytes: Uint8Array,
    private readonly options: PickleOptions,
  ) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** Every opcode that plain data and the classes of a checkpoint need, by its byte. */
  private static readonly OPCODES: Readonly<Record<number, (machine: PickleMachine) => void>> = {
    [OPCODE.PROTO]: (m) => m.protocol(m.byte()),
    [OPCODE.FRAME]: (m) => m.skipWithin(m.length8()),

    [OPCODE.MARK]: (m) => m.mark(),
    [OPCODE.POP]: (m) => (m.stack.length > 0 ? m.stack.pop() : m.popToMark()),
    [OPCODE.POP_MARK]: (m) => m.popToMark(),
    [OPCODE.DUP]: (m) => m.pushKnown(m.top()),

    [OPCODE.NONE]: (m) => m.push(null),
    [OPCODE.NEWTRUE]: (m) => m.push(true),
    [OPCODE.NEWFALSE]: (m) => m.push(false),
    [OPCODE.BININT]: (m) => m.push(m.view.getInt32(m.take(4), true)),
    [OPCODE.BININT1]: (m) => m.push(m.byte()),
    [OPCODE.BININT2]: (m) => m.push(m.view.getUint16(m.take(2), true)),
    [OPCODE.LONG1]: (m) => m.push(m.long(m.byte())),
    [OPCODE.LONG4]: (m) => m.push(m.long(m.length4())),
    [OPCODE.BINFLOAT]: (m) => m.push(m.view.getFloat64(m.take(8), false)),

    [OPCODE.BINUNICODE]: (m) => m.push(m.text(m.length4())),
    [OPCODE.SHORT_BINUNICODE]: (m) => m.push(m.text(m.byte())),
    [OPCODE.BINUNICODE8]: (m) => m.push(m.text(m.length8())),
    [OPCODE.BINSTRING]: (m) => m.push(m.text(m.length4())),
    [OPCODE.SHORT_BINSTRING]: (m) => m.push(m.text(m.byte())),
    [OPCODE.BINBYTES]: (m) => m.push(m.raw(m.length4())),
    [OPCODE.SHORT_BINBYTES]: (m) => m.push(m.raw(m.byte())),
    [OPCODE.BINBYTES8]: (m) => m.push(m.raw(m.length8())),
    [OPCODE.BYTEARRAY8]: (m) => m.push(m.raw(m.length8())),

    [OPCODE.EMPTY_TUPLE]: (m) => m.push(new PyTuple([])),
    [OPCODE.TUPLE1]: (m) => m.push(new PyTuple(m.popCount(1))),
    [OPCODE.TUPLE2]: (m) => m.push(new PyTuple(m.popCount(2))),
    [OPCODE.TUPLE3]: (m) => m.push(new PyTuple(m.popCount(3))),
    [OPCODE.TUPLE]: (m) => m.push(new PyTuple(m.popToMark())),
    [OPCODE.EMPTY_LIST]: (m) => m.push([]),
    [OPCODE.LIST]: (m) => m.push(m.popToMark()),
    [OPCODE.APPEND]: (m) => m.append(m.popCount(1)),
    [OPCODE.APPENDS]: (m) => m.append(m.popToMark()),
    [OPCODE.EMPTY_DICT]: (m) => m.push(new Map()),
    [OPCODE.DICT]: (m) => m.push(m.fill(new Map(), m.popToMark())),
    [OPCODE.SETITEM]: (m) => m.setItems(m.popCount(2)),
    [OPCODE.SETITEMS]: (m) => m.setItems(m.popToMark()),
    [OPCODE.EMPTY_SET]: (m) => m.push(new Set()),
    [OPCODE.ADDITEMS]: (m) => m.addItems(m.popToMark()),
    [OPCODE.FROZENSET]: (m) => m.push(new Set(m.popToMark().map((item) => m.hashable(item)))),

    [OPCODE.BINPUT]: (m) => m.put(m.byte()),
    [OPCODE.LONG_BINPUT]: (m) => m.put(m.length4()),
    [OPCODE.MEMOIZE]: (m) => m.put(m.memo.size),
    [OPCODE.BINGET]: (m) => m.get(m.byte()),
    [OPCODE.LONG_BINGET]: (m) => m.get(m.length4()),

    [OPCODE.GLOBAL]: (m) => m.global(m.line(), m.line()),
    [OPCODE.STACK_GLOBAL]: (m) => m.stackGlobal(),
    [OPCODE.REDUCE]: (m) => m.reduce('call'),
    [OPCODE.NEWOBJ]: (m) => m.reduce('create'),
    [OPCODE.BUILD]: (m) => m.build(),
    [OPCODE.BINPERSID]: (m) => m.persistentId(),
  };

  /** Where the machine stands: after `run`, the length of the pickle. */
  get position(): number {
    return this.at;
  }

  run(): PyValue {
    for (let code = this.byte(); code !== OPCODE.STOP; code = this.byte()) {
      const execute = PickleMachine.OPCODES[code];
      if (!execute) throw this.bad(`opcode 0x${code.toString(16).padStart(2, '0')}, which no checkpoint uses`);
      execute(this);
    }
    const result = this.pop();
    const fault = treeFault(result, this.options.maxDepth ?? MAX_DEPTH, this.options.maxNodes ?? MAX_VALUES);
    if (fault) throw this.bad(fault);
    return result;
  }

  private bad(what: string, cutShort = false): StudioError {
    const { file } = this.options;
    const details = { file, at: this.at, ...(cutShort ? { cutShort } : {}) };
    return new StudioError('bad-file', `${file} cannot be read: ${what} (byte ${this.at} of its pickle).`, details);
  }

  private protocol(version: number): void {
    if (version > MAX_PROTOCOL) throw this.bad(`pickle protocol ${version}, which is newer than ${MAX_PROTOCOL}`);
  }

  // Input

  /** Moves past `length` bytes and returns where they begin. */
  private take(length: number): number {
    this.skipWithin(length);
    const start = this.at;
    this.at += length;
    return start;
  }

  private skipWithin(length: number): void {
    if (length > this.bytes.length - this.at)
      throw this.bad(`it ends in the middle of a value of ${length} bytes`, true);
  }

  private byte(): number {
    return this.bytes[this.take(1)];
  }

  private length4(): number {
    return this.view.getUint32(this.take(4), true);
  }

  private length8(): number {
    return Number(this.view.getBigUint64(this.take(8), true));
  }

  private raw(length: number): Uint8Array<ArrayBuffer> {
    const start = this.take(length);
    return new Uint8Array(this.bytes.subarray(start, start + length));
  }

  private text(length: number): string {
    const start = this.take(length);
    try {
      return UTF8.decode(this.bytes.subarray(start, start + length));
    } catch {
      throw this.bad('text that is not UTF-8');
    }
  }

  private line(): string {
    const end = this.bytes.indexOf(0x0a, this.at);
    if (end < 0) throw this.bad('a name without an end', true);
    const line = this.text(end - this.at);
    this.at++;
    return line;
  }

  private long(length: number): number | bigint {
    if (length > MAX_LONG_BYTES) throw this.bad(`an integer of ${length} bytes`);
    const start = this.take(length);
    let value = 0n;
    for (let i = length - 1; i >= 0; i--) value = (value << 8n) | BigInt(this.bytes[start + i]);
    value = BigInt.asIntN(8 * length, value);
    const small = Number(value);
    return Number.isSafeInteger(small) ? small : value;
  }

  // Stack and memo

  private countValue(): void {
    if (++this.values > MAX_VALUES) throw this.bad(`more than ${MAX_VALUES} values`);
  }

  private mark(): void {
    this.countValue();
    this.outer.push(this.stack);
    this.stack = [];
  }

  private push(value: PyValue): void {
    if (typeof value === 'object' && value !== null && ++this.objects > MAX_OBJECTS)
      throw this.bad(`more than ${MAX_OBJECTS} containers and instances`);
    this.pushKnown(value);
  }

  private pushKnown(value: PyValue): void {
    this.countValue();
    this.stack.push(value);
  }

  private top(): PyValue {
    if (this.stack.length === 0) throw this.bad('an empty stack');
    return this.stack[this.stack.length - 1];
  }

  private pop(): PyValue {
    const value = this.top();
    this.stack.pop();
    return value;
  }

  private popCount(count: number): PyValue[] {
    if (this.stack.length < count) throw this.bad('too few values on the stack');
    return this.stack.splice(this.stack.length - count);
  }

  private popToMark(): PyValue[] {
    const outer = this.outer.pop();
    if (!outer) throw this.bad('a mark that was never set');
    const items = this.stack;
    this.stack = outer;
    return items;
  }

  private put(index: number): void {
    // A pickler numbers its memo from 0, and each number costs it at least two bytes.
    if (index >= this.bytes.length) throw this.bad(`memo number ${index} in a pickle of ${this.bytes.length} bytes`);
    this.memo.set(index, this.top());
    if (this.memo.size > MAX_OBJECTS) throw this.bad(`more than ${MAX_OBJECTS} values in its memo`);
  }

  private get(index: number): void {
    const value = this.memo.get(index);
    if (value === undefined) throw this.bad(`memo number ${index}, which was never stored`);
    this.pushKnown(value);
  }

  // Containers

  private append(items: PyValue[]): void {
    const list = this.top();
    if (!Array.isArray(list)) throw this.bad('items for a list where no list is');
    for (const item of items) list.push(item);
  }

  private setItems(items: PyValue[]): void {
    const dict = this.top();
    if (!(dict instanceof Map)) throw this.bad('items for a dict where no dict is');
    this.fill(dict, items);
  }

  private fill(dict: Map<PyValue, PyValue>, items: PyValue[]): Map<PyValue, PyValue> {
    if (items.length % 2 !== 0) throw this.bad('a dict key without a value');
    for (let i = 0; i < items.length; i += 2) dict.set(this.hashable(items[i]), items[i + 1]);
    return dict;
  }

  private addItems(items: PyValue[]): void {
    const set = this.top();
    if (!(set instanceof Set)) throw this.bad('items for a set where no set is');
    for (const item of items) set.add(this.hashable(item));
  }

  private hashable(key: PyValue): PyValue {
    if (Array.isArray(key) || key instanceof Map || key instanceof Set)
      throw this.bad('a list, dict or set used as a key');
    return key;
  }

  // Globals

  private global(module: string, name: string): void {
    const entry = this.options.globals(module, name);
    if (!entry) {
      throw new StudioError(
        'refused-global',
        `${this.options.file} asks for ${quoted(`${module}.${name}`)}, which no checkpoint of weights needs. Nothing was executed; the file is refused.`,
        { file: this.options.file, global: `${module}.${name}` },
      );
    }
    this.push(entry.value !== undefined ? entry.value : new PyGlobalReference(module, name, entry));
  }

  private stackGlobal(): void {
    const [module, name] = this.popCount(2);
    if (typeof module !== 'string' || typeof name !== 'string') throw this.bad('a global whose name is not text');
    this.global(module, name);
  }

  private reduce(how: 'call' | 'create'): void {
    const [callee, args] = this.popCount(2);
    if (!(args instanceof PyTuple)) throw this.bad('arguments that are no tuple');
    const make = callee instanceof PyGlobalReference ? callee.entry[how] : undefined;
    if (!(callee instanceof PyGlobalReference) || !make) {
      const called =
        callee instanceof PyGlobalReference
          ? `${callee.module}.${callee.name}`
          : 'a value that is no class or function';
      throw this.bad(`a ${how} of ${called}, which has none`);
    }
    this.spend(args.items);
    const value = this.guard(`${callee.module}.${callee.name}`, () => make(args.items));
    if (callee.entry.build && value !== null && typeof value === 'object') this.makers.set(value, callee.entry);
    this.push(value);
  }

  /** Calls copy what they are given, so a short pickle that gives one long value to many calls must not grow without bound. */
  private spend(args: readonly PyValue[]): void {
    this.argumentUnits += args.length;
    for (const item of args) {
      if (item === null || (typeof item !== 'object' && typeof item !== 'string')) continue;
      if (item instanceof Map || item instanceof Set) this.argumentUnits += item.size;
      else this.argumentUnits += (item as { length?: number }).length ?? sequenceItems(item)?.length ?? 1;
    }
    if (this.argumentUnits > MAX_ARGUMENT_UNITS_PER_BYTE * this.bytes.length)
      throw this.bad('calls with too many arguments');
  }

  private build(): void {
    const state = this.pop();
    const instance = this.top();
    // torch hangs `_metadata` (module versions) on a state dict; it says nothing about any tensor.
    if (instance instanceof PyOrderedDict) return;
    const maker = this.makers.get(instance);
    if (!maker?.build) throw this.bad('a state for a value that takes none');
    this.guard('a state', () => maker.build!(instance, state));
  }

  private persistentId(): void {
    const resolve = this.options.persistent;
    if (!resolve) throw this.bad('a persistent id, which this kind of file does not have');
    const id = this.pop();
    this.push(this.guard('a persistent id', () => resolve(id)));
  }

  /** Runs a builder of the allow-list; what it throws as text becomes 'bad-file' with the place. */
  private guard<T>(what: string, action: () => T): T {
    try {
      return action();
    } catch (error) {
      if (error instanceof PickleArgumentError) throw this.bad(`${what} with wrong arguments: ${error.message}`);
      throw error;
    }
  }
}

/** What a builder of the allow-list throws when its arguments make no sense. */
export class PickleArgumentError extends Error {}

const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** A name from a file, safe to print. */
function quoted(name: string): string {
  return JSON.stringify(name.length > 200 ? `${name.slice(0, 200)}…` : name).slice(1, -1);
}
