import { createHash } from 'node:crypto';
import koffi, { type KoffiFunc } from 'koffi';
import { StudioError } from '../errors.ts';

/** Below so many bytes a digest is computed sooner than another thread begins. */
const WORTH_A_THREAD_BYTES = 64 * 1024;

/** A SHA-256 that grows piece by piece. */
export interface Sha256 {
  /** Takes the next bytes, which must not change until it resolves; then, and not before, come the next. */
  update(bytes: Uint8Array): Promise<void>;
  /** In hex. No update may be under way, and none follows. */
  digest(): string;
  /** In place of `digest`, where nobody wants it any more. */
  discard(): void;
}

/**
 * A digest in a thread of Node's pool, straight from the caller's memory: this thread goes on meanwhile. It is the OpenSSL that
 * node:crypto has, by functions that Node's program exports; where one does not, node:crypto's own digest on this thread.
 */
export function sha256(): Sha256 {
  library ??= openLibrary();
  return library === 'missing' ? sha256OnThisThread() : sha256InPool(library);
}

type Pointer = object;
interface Library {
  readonly create: KoffiFunc<() => Pointer | null>;
  readonly algorithm: KoffiFunc<() => Pointer>;
  readonly init: KoffiFunc<(context: Pointer, algorithm: Pointer, engine: null) => number>;
  readonly update: KoffiFunc<(context: Pointer, bytes: Uint8Array, length: number) => number>;
  readonly final: KoffiFunc<(context: Pointer, digest: Uint8Array, length: null) => number>;
  readonly free: KoffiFunc<(context: Pointer) => void>;
}
let library: Library | 'missing' | undefined;

function openLibrary(): Library | 'missing' {
  try {
    const node = koffi.load(null);
    return {
      create: node.func('void *EVP_MD_CTX_new()'),
      algorithm: node.func('void *EVP_sha256()'),
      init: node.func('int EVP_DigestInit_ex(void *context, void *algorithm, void *engine)'),
      update: node.func('int EVP_DigestUpdate(void *context, const void *bytes, size_t length)'),
      final: node.func('int EVP_DigestFinal_ex(void *context, void *digest, void *length)'),
      free: node.func('void EVP_MD_CTX_free(void *context)'),
    } as Library;
  } catch {
    return 'missing';
  }
}

function sha256InPool({ create, algorithm, init, update, final, free }: Library): Sha256 {
  const context = create();
  if (!context) throw new StudioError('out-of-memory', 'There is no memory for a digest.');
  let open = true;
  const discard = () => {
    if (open) free(context);
    open = false;
  };
  const check = (result: number) => {
    if (result !== 1) throw new StudioError('internal', 'OpenSSL computes no SHA-256.');
  };
  check(init(context, algorithm(), null));
  return {
    async update(bytes) {
      if (bytes.length < WORTH_A_THREAD_BYTES) return check(update(context, bytes, bytes.length));
      // The callback is all that koffi keeps of what it is given, so the callback keeps the bytes.
      const [result] = await new Promise<[number, Uint8Array]>((resolve, reject) => {
        const ended = (error: Error | null, ok: number) => (error ? reject(error) : resolve([ok, bytes]));
        update.async(context, bytes, bytes.length, ended);
      });
      check(result);
    },
    digest() {
      const digest = new Uint8Array(32);
      check(final(context, digest, null));
      discard();
      return Buffer.from(digest.buffer).toString('hex');
    },
    discard,
  };
}

/** The same by node:crypto, on the thread that asks. */
export function sha256OnThisThread(): Sha256 {
  const hash = createHash('sha256');
  return {
    async update(bytes) {
      hash.update(bytes);
    },
    digest: () => hash.digest('hex'),
    discard: () => undefined,
  };
}
