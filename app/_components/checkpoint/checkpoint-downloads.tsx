import { checkpointUrl } from '../../_lib/api.ts';
import { buttonClass } from '../ui/button.tsx';
import { Icon } from '../ui/icon.tsx';

/** The forms in which a checkpoint can be downloaded: as it is first, then those that are made as they are sent. */
export function CheckpointDownloads({ runId, name, format }: { runId: string; name: string; format: string }) {
  const stem = name.replace(/\.(ckpt|safetensors)$/, '');
  const forms = [
    { as: null, label: format === 'sharded' ? '.tar' : format === 'full' ? '.ckpt' : '.safetensors' },
    ...(format === 'sharded' ? [{ as: 'full' as const, label: '.ckpt' }] : []),
    ...(format === 'safetensors' ? [] : [{ as: 'safetensors' as const, label: '.safetensors' }]),
  ];
  return (
    <>
      {forms.map(({ as, label }, i) => (
        <a
          key={label}
          href={checkpointUrl(runId, name, as)}
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
