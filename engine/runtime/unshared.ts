/**
 * Dawn's Node binding dies of a segmentation fault when it is handed a view over shared memory, so a view that
 * comes from elsewhere passes here before it goes to a queue. Returns the view; throws TypeError for one over a SharedArrayBuffer.
 */
export function assertUnshared<T extends ArrayBufferView>(view: T): T & ArrayBufferView<ArrayBuffer> {
  if (typeof SharedArrayBuffer !== 'undefined' && view.buffer instanceof SharedArrayBuffer) {
    throw new TypeError('The device takes no view over a SharedArrayBuffer; copy the bytes to an ArrayBuffer first.');
  }
  return view as T & ArrayBufferView<ArrayBuffer>;
}
