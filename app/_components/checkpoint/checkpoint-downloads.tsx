import { checkpointUrl } from '../../_lib/api.ts';
import type { CheckpointRef } from '../../_lib/checkpoint-ref.ts';
import { buttonClass } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';

/**
 * The forms in which a checkpoint can be downloaded: as it is first, then, unless `only` that, those that are made as they are
 * sent.
 */
export function CheckpointDownloads(props: { checkpoint: CheckpointRef; kind: string; only?: boolean }) {
  const { checkpoint, kind, only = false } = props;
  const { name } = checkpoint;
  const stem = name.replace(/\.(ckpt|pt|pth|bin|safetensors)$/, '');
  const forms = [
    { as: null, label: kind === 'sharded' ? '.tar' : kind === 'full' ? '.ckpt' : '.safetensors' },
    ...(kind === 'sharded' && !only ? [{ as: 'full' as const, label: '.ckpt' }] : []),
    ...(kind === 'safetensors' || only ? [] : [{ as: 'safetensors' as const, label: '.safetensors' }]),
  ];
  return (
    <>
      {forms.map(({ as, label }, i) => (
        <a
          key={label}
          href={checkpointUrl(checkpoint, as)}
          download={`${stem}${label}`}
          className={buttonClass(i === 0 ? 'plain' : 'quiet')}
          aria-label={i === 0 ? `Download ${name}` : `Download ${name} as ${label}`}
        >
          {i === 0 ? <Icon name="download" className="size-3.5" /> : null}
          {i === 0 ? `Download ${label}` : label}
        </a>
      ))}
    </>
  );
}
