'use client';

import { type ReactNode, useEffect, useRef, useState } from 'react';
import { Button } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';

const ACCEPT = '.ckpt,.pt,.pth,.bin,.safetensors,.tar';

/**
 * A page on which checkpoints can be dropped anywhere, or chosen with the button that `children` places. `isEmpty`: a large
 * field says what can be uploaded and why.
 */
export function DropZone(props: {
  onFiles: (files: readonly File[]) => void;
  isEmpty: boolean;
  children: (choose: ReactNode) => ReactNode;
}) {
  const { onFiles, isEmpty, children } = props;
  const over = useFileDrop(onFiles);
  const input = useRef<HTMLInputElement>(null);
  const choose = (look: 'primary' | 'plain') => (
    <Button look={look} onClick={() => input.current?.click()}>
      <Icon name="upload" className="size-3.5" />
      Upload checkpoint
    </Button>
  );
  return (
    <div className="relative min-h-[60dvh]" data-testid="drop-zone">
      <input
        ref={input}
        type="file"
        multiple
        accept={ACCEPT}
        className="hidden"
        aria-label="Checkpoints to upload"
        onChange={(e) => {
          const files = [...(e.target.files ?? [])];
          e.target.value = '';
          onFiles(files);
        }}
      />
      {children(isEmpty ? null : choose('primary'))}
      {isEmpty ? <EmptyLibrary choose={choose('primary')} /> : null}
      {over ? (
        <div className="pointer-events-none absolute -inset-2 z-20 grid place-items-center rounded-[12px] border-2 border-dashed border-accent bg-accent-soft/80">
          <p className="panel flex items-center gap-2 px-4 py-3 text-base font-semibold text-accent shadow-[0_8px_30px_rgb(0_0_0/0.18)]">
            <Icon name="upload" />
            Drop to upload it
          </p>
        </div>
      ) : null}
    </div>
  );
}

/** What can be uploaded, and what for. */
function EmptyLibrary({ choose }: { choose: ReactNode }) {
  return (
    <>
      <div className="panel border-dashed! border-line-strong! px-5 py-12 text-center sm:py-16">
        <span className="mx-auto grid size-11 place-items-center rounded-full bg-accent-soft text-accent">
          <Icon name="upload" className="size-5" />
        </span>
        <h2 className="mt-4 text-base font-semibold">Upload a checkpoint</h2>
        <p className="mx-auto mt-1.5 max-w-prose text-pretty text-muted">
          Drop a <code className="font-mono text-xs">.ckpt</code> or <code className="font-mono text-xs">.pt</code> of
          torch.save or Fabric, a <code className="font-mono text-xs">.safetensors</code>, or a sharded folder as one{' '}
          <code className="font-mono text-xs">.tar</code>. It is read through before it appears, and nothing in it is
          executed.
        </p>
        <div className="mt-5 flex justify-center">{choose}</div>
      </div>
      <ol className="mt-4 grid gap-px overflow-hidden rounded-[10px] border border-line bg-line sm:grid-cols-3">
        {[
          [
            'Look',
            'Every tensor: its shape, its chunks by rank, min, max, mean and a histogram. The SHA-256 of each file.',
          ],
          ['Convert', 'To one torch file, to safetensors, or to a folder in the files of any number of ranks.'],
          [
            'Train',
            'A run starts from its weights, or resumes where it stopped, under any strategy and on any number of ranks.',
          ],
        ].map(([title, text]) => (
          <li key={title} className="bg-panel p-5">
            <h3 className="font-semibold">{title}</h3>
            <p className="mt-1 text-muted">{text}</p>
          </li>
        ))}
      </ol>
    </>
  );
}

/** Takes files that are dropped anywhere on the page; whether some are being held over it. */
function useFileDrop(onFiles: (files: readonly File[]) => void): boolean {
  const [over, setOver] = useState(false);
  const take = useRef(onFiles);
  useEffect(() => {
    take.current = onFiles;
  });
  useEffect(() => {
    const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes('Files') ?? false;
    const onOver = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(true);
    };
    // Within the page, every element that is left tells of it; out of the window there is nothing that is entered.
    const onLeave = (event: DragEvent) => {
      if (event.relatedTarget === null) setOver(false);
    };
    const onDrop = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(false);
      take.current([...(event.dataTransfer?.files ?? [])]);
    };
    document.addEventListener('dragover', onOver);
    document.addEventListener('dragleave', onLeave);
    document.addEventListener('drop', onDrop);
    return () => {
      document.removeEventListener('dragover', onOver);
      document.removeEventListener('dragleave', onLeave);
      document.removeEventListener('drop', onDrop);
    };
  }, []);
  return over;
}
