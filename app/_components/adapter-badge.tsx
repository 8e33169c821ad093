'use client';

import { useQuery } from '@tanstack/react-query';
import { listDevices } from '../_lib/api.ts';
import { Icon } from './ui/icon.tsx';

/** Which adapter runs would use, at the top of every page. */
export function AdapterBadge() {
  const { data } = useQuery({ queryKey: ['devices'], queryFn: ({ signal }) => listDevices(signal), staleTime: 60_000 });
  const first = data?.adapters[0];
  if (!data || (!first && !data.error)) return null;
  const label = first ? `${first.name}${first.software ? ' · software' : ''}` : 'no adapter';
  const title = first ? data.adapters.map(({ name }) => name).join('\n') : (data.error ?? '');
  return (
    <span title={title} className="hidden min-w-0 items-center gap-1.5 px-2 text-xs text-muted sm:flex">
      <Icon name="chip" className="size-3.5" />
      <span className="max-w-64 truncate">{label}</span>
    </span>
  );
}
