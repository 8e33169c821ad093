/** 32-bit FNV-1a of a text's UTF-16 units (Fowler, Noll, Vo): for seeds and for comparing what ranks agree on. */
export function fnv1a(text: string): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return hash >>> 0;
}
