'use client';

import { useQueryClient } from '@tanstack/react-query';
import { useEffect, useRef, useState } from 'react';
import { uploadFile } from './api.ts';

/** A checkpoint on its way to the studio. */
export interface CheckpointUpload {
  readonly id: number;
  readonly name: string;
  readonly bytes: number;
  readonly sentBytes: number;
  /** Sent to the last byte, it is read through by the studio. */
  readonly phase: 'waiting' | 'sending' | 'verifying' | 'done' | 'failed';
  /** Why it failed; for one that is done, the name that it has now. */
  readonly said: string;
}

const ENDINGS = ['.ckpt', '.pt', '.pth', '.bin', '.safetensors', '.tar'];

/** Checkpoints that are brought, one after another. They end when the page is left. */
export function useUploads() {
  const client = useQueryClient();
  const [uploads, setUploads] = useState<readonly CheckpointUpload[]>([]);
  const last = useRef(Promise.resolve());
  const leaving = useRef(new Map<number, AbortController>());
  const nextId = useRef(1);
  useEffect(() => {
    const going = leaving.current;
    return () => {
      for (const one of going.values()) one.abort();
    };
  }, []);

  const change = (id: number, next: Partial<CheckpointUpload>) =>
    setUploads((before) => before.map((one) => (one.id === id ? { ...one, ...next } : one)));
  const drop = (id: number) => setUploads((before) => before.filter((one) => one.id !== id));

  const send = async (id: number, file: File, { signal }: AbortController) => {
    if (signal.aborted) return drop(id);
    change(id, { phase: 'sending' });
    try {
      const onSent = (sentBytes: number) =>
        change(id, { sentBytes, phase: sentBytes >= file.size ? 'verifying' : 'sending' });
      const { path } = await uploadFile('checkpoint', file, { signal, onSent });
      change(id, { phase: 'done', said: path.replace(/^uploads\//, '') });
      await client.invalidateQueries({ queryKey: ['brought'] });
    } catch (error) {
      if (signal.aborted) drop(id);
      else change(id, { phase: 'failed', said: error instanceof Error ? error.message : String(error) });
    } finally {
      leaving.current.delete(id);
    }
  };

  const add = (files: readonly File[]) => {
    for (const file of files) {
      const id = nextId.current++;
      const problem = problemOf(file);
      const phase = problem === null ? 'waiting' : 'failed';
      const upload = { id, name: file.name, bytes: file.size, sentBytes: 0, phase, said: problem ?? '' } as const;
      setUploads((before) => [...before, upload]);
      if (problem !== null) continue;
      const mine = new AbortController();
      leaving.current.set(id, mine);
      last.current = last.current.then(() => send(id, file, mine));
    }
  };
  /** Ends one that goes on, and forgets one that ended. */
  const dismiss = (id: number) => {
    leaving.current.get(id)?.abort();
    drop(id);
  };
  return { uploads, add, dismiss };
}

/** What needs no server to be seen. */
function problemOf({ name, size }: File): string | null {
  if (!ENDINGS.some((ending) => name.toLowerCase().endsWith(ending)))
    return `It ends in none of ${ENDINGS.join(', ')}. A checkpoint folder comes as one .tar: tar -cf NAME.tar FOLDER`;
  return size === 0 ? 'The file is empty.' : null;
}
