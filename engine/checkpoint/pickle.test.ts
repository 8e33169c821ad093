import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { StudioError } from '../errors.ts';
import { writePickle } from './fixtures/write-pickle.ts';
import { OPCODE } from './pickle-opcodes.ts';
import { type PickleGlobals, readPickle } from './pickle-reader.ts';
import { PyOrderedDict, PyTuple, type PyValue, tuple } from './python-value.ts';
import { torchGlobals } from './torch-globals.ts';

const read = (bytes: Uint8Array | readonly number[], globals: PickleGlobals = torchGlobals): PyValue =>
  readPickle(Uint8Array.from(bytes), { file: 'test.pkl', globals });

function failure(bytes: Uint8Array | readonly number[]): StudioError {
  try {
    read(bytes);
  } catch (error) {
    if (error instanceof StudioError) return error;
    throw error;
  }
  throw new Error('it was read');
}

const fromHex = (hex: string): Uint8Array => Uint8Array.from(hex.match(/../g)!, (byte) => Number.parseInt(byte, 16));
const ascii = (text: string): number[] => [...text].map((character) => character.charCodeAt(0));

describe('what Python writes', () => {
  /**
   * Python's own pickle.dumps(value, protocol) of
   * {'a': [1, 2.5, None, True, (1, 2, 3, 4), b'xyz', -5, 2**70, 'é'], 's': {1}, 'fs': frozenset([2]), 'o': OrderedDict(x=1),
   *  'ba': bytearray(b'q'), 'nested': {'k': {'l': [[]]}}}
   */
  const WRITTEN: Record<number, string> = {
    2: '80027d71002858010000006171015d7102284b014740040000000000004e88284b014b024b034b04747103635f636f646563730a656e636f64650a7104580300000078797a710558060000006c6174696e3171068671075271084afbffffff8a090000000000000000405802000000c3a9710965580100000073710a635f5f6275696c74696e5f5f0a7365740a710b5d710c4b016185710d52710e58020000006673710f635f5f6275696c74696e5f5f0a66726f7a656e7365740a71105d71114b026185711252711358010000006f711463636f6c6c656374696f6e730a4f726465726564446963740a71152952711658010000007871174b0173580200000062617118635f5f6275696c74696e5f5f0a6279746561727261790a71196804580100000071711a680686711b52711c85711d52711e58060000006e6573746564711f7d712058010000006b71217d712258010000006c71235d71245d7125617373752e',
    3: '80037d71002858010000006171015d7102284b014740040000000000004e88284b014b024b034b04747103430378797a71044afbffffff8a090000000000000000405802000000c3a97105655801000000737106636275696c74696e730a7365740a71075d71084b016185710952710a58020000006673710b636275696c74696e730a66726f7a656e7365740a710c5d710d4b026185710e52710f58010000006f711063636f6c6c656374696f6e730a4f726465726564446963740a71112952711258010000007871134b0173580200000062617114636275696c74696e730a6279746561727261790a7115430171711685711752711858060000006e657374656471197d711a58010000006b711b7d711c58010000006c711d5d711e5d711f617373752e',
    4: '800495c2000000000000007d94288c0161945d94284b014740040000000000004e88284b014b024b034b047494430378797a944afbffffff8a090000000000000000408c02c3a994658c0173948f94284b01908c02667394284b0291948c016f948c0b636f6c6c656374696f6e73948c0b4f726465726564446963749493942952948c0178944b01738c026261948c086275696c74696e73948c0962797465617272617994939443017194859452948c066e6573746564947d948c016b947d948c016c945d945d94617373752e',
    5: '800595ac000000000000007d94288c0161945d94284b014740040000000000004e88284b014b024b034b047494430378797a944afbffffff8a090000000000000000408c02c3a994658c0173948f94284b01908c02667394284b0291948c016f948c0b636f6c6c656374696f6e73948c0b4f726465726564446963749493942952948c0178944b01738c0262619496010000000000000071948c066e6573746564947d948c016b947d948c016c945d945d94617373752e',
  };
  const EXPECTED = new Map<PyValue, PyValue>([
    ['a', [1, 2.5, null, true, tuple(1, 2, 3, 4), Uint8Array.from(ascii('xyz')), -5, 2n ** 70n, 'é']],
    ['s', new Set([1])],
    ['fs', new Set([2])],
    ['o', new PyOrderedDict([['x', 1]])],
    ['ba', Uint8Array.from(ascii('q'))],
    ['nested', new Map([['k', new Map([['l', [[]]]])]])],
  ]);

  for (const [protocol, hex] of Object.entries(WRITTEN)) {
    test(`protocol ${protocol}`, () => {
      expect(read(fromHex(hex))).toStrictEqual(EXPECTED);
    });

    test(`protocol ${protocol} cut anywhere is a typed error`, () => {
      const whole = fromHex(hex);
      for (let length = 0; length < whole.length; length++) {
        expect(failure(whole.subarray(0, length)).code).toMatch(/bad-file|refused-global/);
      }
    });
  }
});

describe('round trip', () => {
  const scalar = fc.oneof(
    fc.constant(null),
    fc.boolean(),
    fc.integer(),
    fc.maxSafeInteger(),
    fc.bigInt({ min: -(2n ** 200n), max: 2n ** 200n }).filter((n) => !Number.isSafeInteger(Number(n))),
    fc.double(),
    fc.string({ unit: 'grapheme' }),
    fc.uint8Array({ maxLength: 20 }).map((bytes) => new Uint8Array(bytes)),
  );
  const { value } = fc.letrec<{ value: PyValue }>((tie) => {
    const items = fc.array(tie('value'), { maxLength: 5 });
    const entries = fc.array(fc.tuple(fc.oneof(fc.string(), fc.integer()), tie('value')), { maxLength: 5 });
    return {
      value: fc.oneof(
        { depthSize: 'small', withCrossShrink: true },
        scalar,
        items,
        items.map((list) => new PyTuple(list)),
        entries.map((pairs) => new Map<PyValue, PyValue>(pairs)),
        entries.map((pairs) => new PyOrderedDict(pairs)),
        fc.array(fc.integer(), { maxLength: 5 }).map((list) => new Set<PyValue>(list)),
      ),
    };
  });

  test('what the writer writes, the reader reads back the same', () => {
    fc.assert(
      fc.property(value, (tree) => {
        expect(read(writePickle(tree))).toStrictEqual(tree);
      }),
      { numRuns: 500, seed: 7 },
    );
  });

  test('more than 256 memo entries, and every width of integer', () => {
    const names = Array.from({ length: 600 }, (_, i) => `parameter.${i}`);
    const integers = [0, 255, 256, 65535, 65536, 2 ** 31 - 1, 2 ** 31, -1, -(2 ** 31), -(2 ** 31) - 1, 2 ** 53 - 1];
    const tree = [...names, ...names, ...integers, 127n << 64n, 128n << 64n, -(1n << 71n)];
    expect(read(writePickle(tree))).toStrictEqual(tree);
  });
});

describe('what a hostile pickle may try', () => {
  test.each([
    ['dicts', '}', /more than 2000000 containers/],
    ['lists', ']', /more than 2000000 containers/],
    ['tuples', ')', /more than 2000000 containers/],
    ['marks', '(', /more than 8000000 values/],
    ['numbers in the memo', '\x94', /more than 2000000 values in its memo/],
    ['values used twice', '2', /more than 8000000 values/],
  ])('millions of %s, which a few kilobytes inflate to', (_, opcode, said) => {
    const bytes = new Uint8Array(8_000_100).fill(opcode.charCodeAt(0));
    bytes.set([0x80, 2, OPCODE.EMPTY_LIST, OPCODE.MARK, OPCODE.NONE]);
    expect(failure(bytes)).toMatchObject({ code: 'bad-file', message: expect.stringMatching(said) });
  });

  test('a foreign global is refused by its name, before anything else happens', () => {
    const error = failure([...ascii('cposix\nsystem\n'), OPCODE.STOP]);
    expect(error.code).toBe('refused-global');
    expect(error.message).toContain('posix.system');
    expect(error.message).toContain('test.pkl');
    expect(error.details.global).toBe('posix.system');
  });

  test('a name that JavaScript objects inherit is foreign too', () => {
    for (const name of ['constructor', '__proto__', 'toString', 'hasOwnProperty']) {
      expect(failure([...ascii(`ctorch\n${name}\n`), OPCODE.STOP]).code).toBe('refused-global');
    }
  });

  test('STACK_GLOBAL is held to the same list', () => {
    const text = (value: string): number[] => [OPCODE.SHORT_BINUNICODE, value.length, ...ascii(value)];
    const error = failure([...text('builtins'), ...text('eval'), OPCODE.STACK_GLOBAL, OPCODE.STOP]);
    expect(error.details.global).toBe('builtins.eval');
  });

  test('a dict key named __proto__ is a key like any other', () => {
    const tree = read(writePickle(new Map([['__proto__', new Map([['polluted', true]])]])));
    expect(tree).toStrictEqual(new Map([['__proto__', new Map([['polluted', true]])]]));
    expect(({} as { polluted?: boolean }).polluted).toBeUndefined();
  });

  test('a million lists inside each other', () => {
    const nested = new Uint8Array(2_000_001)
      .fill(OPCODE.EMPTY_LIST, 0, 1_000_000)
      .fill(OPCODE.APPEND, 1_000_000, 2_000_000);
    nested[2_000_000 - 1] = OPCODE.STOP;
    expect(failure(nested).message).toMatch(/100 deep/);
  });

  test('depth that only shows through the memo', () => {
    // x = (); then 150 times x = (x,), each through the memo.
    const bytes: number[] = [OPCODE.EMPTY_TUPLE, OPCODE.BINPUT, 0];
    for (let i = 0; i < 150; i++) bytes.push(OPCODE.POP, OPCODE.BINGET, i, OPCODE.TUPLE1, OPCODE.BINPUT, i + 1);
    expect(failure([...bytes, OPCODE.STOP]).message).toMatch(/100 deep/);
  });

  test('a list that contains itself', () => {
    const bytes = [OPCODE.EMPTY_LIST, OPCODE.BINPUT, 0, OPCODE.BINGET, 0, OPCODE.APPEND, OPCODE.STOP];
    expect(failure(bytes).message).toMatch(/contains itself/);
  });

  test('a memo bomb: each list holds the one before it ten times', () => {
    const bytes: number[] = [OPCODE.EMPTY_LIST, OPCODE.BINPUT, 0];
    for (let i = 0; i < 60; i++) {
      bytes.push(OPCODE.EMPTY_LIST, OPCODE.MARK);
      for (let k = 0; k < 10; k++) bytes.push(OPCODE.BINGET, i);
      bytes.push(OPCODE.APPENDS, OPCODE.BINPUT, i + 1);
    }
    expect(failure([...bytes, OPCODE.STOP]).message).toMatch(/shared ones counted each time/);
  });

  test('one long value given to many calls', () => {
    const long = 100_000;
    const bytes = [
      OPCODE.BINUNICODE,
      long & 0xff,
      (long >> 8) & 0xff,
      long >> 16,
      0,
      ...new Array<number>(long).fill(0x61),
    ];
    bytes.push(OPCODE.BINPUT, 0, OPCODE.POP, OPCODE.EMPTY_LIST);
    for (let i = 0; i < 5000; i++) {
      bytes.push(...ascii('c_codecs\nencode\n'), OPCODE.BINGET, 0, OPCODE.SHORT_BINSTRING, 6, ...ascii('latin1'));
      bytes.push(OPCODE.TUPLE2, OPCODE.REDUCE, OPCODE.APPEND);
    }
    expect(failure([...bytes, OPCODE.STOP]).message).toMatch(/too many arguments/);
  });

  test.each([
    ['a string longer than the file', [OPCODE.BINUNICODE, 0xff, 0xff, 0xff, 0xff, 0x61]],
    ['bytes of 2^63', [OPCODE.BINBYTES8, 0, 0, 0, 0, 0, 0, 0, 0x80]],
    ['a memo number of four billion', [OPCODE.NONE, OPCODE.LONG_BINPUT, 0xff, 0xff, 0xff, 0xff, OPCODE.STOP]],
    ['a memo number never stored', [OPCODE.BINGET, 3, OPCODE.STOP]],
    ['an integer of a kilobyte', [OPCODE.LONG4, 0, 4, 0, 0, ...new Array<number>(1024).fill(1), OPCODE.STOP]],
    ['a list as a key', [OPCODE.EMPTY_DICT, OPCODE.EMPTY_LIST, OPCODE.NONE, OPCODE.SETITEM, OPCODE.STOP]],
    ['half a dict item', [OPCODE.EMPTY_DICT, OPCODE.MARK, OPCODE.NONE, OPCODE.SETITEMS, OPCODE.STOP]],
    ['no mark', [OPCODE.EMPTY_LIST, OPCODE.APPENDS, OPCODE.STOP]],
    ['nothing', [OPCODE.STOP]],
    ['text that is not UTF-8', [OPCODE.SHORT_BINUNICODE, 1, 0xff, OPCODE.STOP]],
    ['a call of a number', [OPCODE.BININT1, 1, OPCODE.EMPTY_TUPLE, OPCODE.REDUCE, OPCODE.STOP]],
    ['a persistent id where none belongs', [OPCODE.NONE, OPCODE.BINPERSID, OPCODE.STOP]],
    ['a state for a list', [OPCODE.EMPTY_LIST, OPCODE.NONE, OPCODE.BUILD, OPCODE.STOP]],
    ['an opcode of old pickles', [...ascii('I1\n'), OPCODE.STOP]],
    ['a newer protocol', [OPCODE.PROTO, 6, OPCODE.NONE, OPCODE.STOP]],
    ['a frame beyond the end', [OPCODE.FRAME, 9, 0, 0, 0, 0, 0, 0, 0, OPCODE.NONE, OPCODE.STOP]],
  ])('%s', (_, bytes) => {
    expect(failure(bytes).code).toBe('bad-file');
  });
});
